#include "text/turn_end.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "text/chat_template.h"
#include "text/utf8.h"

namespace sixfold {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

// Words that no template holds. They stand for the messages' contents, in this order.
constexpr const char* kSystem = "Zq7system";
constexpr const char* kContents[] = {"Zq7first0question", "Zq7first0answer", "Zq7second0question",
                                     "Zq7second0answer"};
constexpr const char* kArguments[] = {"Zq7first0argument", "Zq7second0argument"};
constexpr size_t kGapBytesMax = 4096;  // looked at, of the text between two contents

// Whether a template gets contents as texts or as lists of parts.
enum class Form : uint8_t { kText, kParts };

Json Message(const char* role, const char* content, Form form) {
  if (form == Form::kText) return {{"role", role}, {"content", content}};
  return {{"role", role}, {"content", Json::array({{{"type", "text"}, {"text", content}}})}};
}

// The text, or nullopt where the template refuses the messages. The bounds are far above what
// published templates need.
std::optional<std::string> Render(const Tokenizer& tokenizer, std::string_view source,
                                  const Json& messages, const std::string& tools_json) {
  ChatTemplateOptions options;
  options.tools_json = tools_json;
  options.special_tokens = tokenizer.special_tokens();
  options.now_s = 0;
  options.steps_max = 2'000'000;
  options.bytes_max = 16ull << 20;
  options.time_ms_max = 2'000;
  Result<std::string> text = RenderChatTemplate(source, messages.dump(), options);
  if (!text.ok()) return std::nullopt;
  return *std::move(text);
}

constexpr const char* kBlanks = " \t\r\n";
bool IsBlank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

// The text between two contents as tokens.
class Gap {
 public:
  Gap(const Tokenizer& tokenizer, std::string_view text)
      : tokenizer_(tokenizer), text_(text.substr(0, kGapBytesMax)) {
    text_ = text_.substr(0, ValidUtf8Prefix(text_));
    Result<Ids> ids = tokenizer.Encode(text_, AddSpecial::kNo);
    if (ids.ok()) ids_ = *std::move(ids);
    std::erase_if(ids_, [&](TokenId id) {
      return !tokenizer.IsSpecial(id) && IsBlank(tokenizer.TokenBytes(id));
    });
  }

  bool blank() const { return IsBlank(text_); }

  Ids Controls() const {
    Ids controls;
    std::copy_if(ids_.begin(), ids_.end(), std::back_inserter(controls),
                 [this](TokenId id) { return IsControl(id); });
    return controls;
  }
  bool Has(TokenId id) const { return std::find(ids_.begin(), ids_.end(), id) != ids_.end(); }

  // The control token that the gap begins with, or ends with; nullopt where that is text.
  std::optional<TokenId> First() const {
    if (ids_.empty() || !IsControl(ids_.front())) return std::nullopt;
    const std::string_view trimmed =
        text_.substr(std::min(text_.find_first_not_of(kBlanks), text_.size()));
    return trimmed.starts_with(tokenizer_.TokenText(ids_.front())) ? std::optional(ids_.front())
                                                                   : std::nullopt;
  }
  std::optional<TokenId> Last() const {
    if (ids_.empty() || !tokenizer_.IsSpecial(ids_.back())) return std::nullopt;
    const std::string_view trimmed = text_.substr(0, text_.find_last_not_of(kBlanks) + 1);
    return trimmed.ends_with(tokenizer_.TokenText(ids_.back())) ? std::optional(ids_.back())
                                                                : std::nullopt;
  }

 private:
  // Files exist whose chat markers are not flagged as special.
  bool IsControl(TokenId id) const { return tokenizer_.IsSpecial(id) || tokenizer_.IsAdded(id); }

  const Tokenizer& tokenizer_;
  std::string_view text_;
  Ids ids_;
};

// A conversation of two questions and two answers, cut at the contents: gaps[i] stands before
// content i, the last behind all.
struct Cut {
  std::string text;
  std::vector<std::pair<size_t, size_t>> gaps;

  Gap gap(const Tokenizer& tokenizer, size_t i) const {
    return Gap(tokenizer,
               std::string_view(text).substr(gaps[i].first, gaps[i].second - gaps[i].first));
  }
};

enum class Opening : uint8_t { kSystem, kQuestion };

std::optional<Cut> CutConversation(const Tokenizer& tokenizer, std::string_view source,
                                   Opening opening) {
  for (const Form form : {Form::kText, Form::kParts}) {
    Json messages = Json::array();
    std::vector<std::string_view> contents(std::begin(kContents), std::end(kContents));
    if (opening == Opening::kSystem) {
      messages.push_back(Message("system", kSystem, form));
      contents.insert(contents.begin(), kSystem);
    }
    for (size_t i = 0; i < std::size(kContents); ++i) {
      messages.push_back(Message(i % 2 == 0 ? "user" : "assistant", kContents[i], form));
    }
    std::optional<std::string> text = Render(tokenizer, source, messages, "");
    if (!text) continue;
    Cut cut{.text = *std::move(text), .gaps = {}};
    size_t from = 0;
    for (const std::string_view content : contents) {
      const size_t at = cut.text.find(content, from);
      if (at == std::string::npos) break;
      cut.gaps.emplace_back(from, at);
      from = at + content.size();
    }
    if (cut.gaps.size() != contents.size()) continue;
    cut.gaps.emplace_back(from, cut.text.size());
    return cut;
  }
  return std::nullopt;
}

class Finder {
 public:
  Finder(const Tokenizer& tokenizer, std::string_view source)
      : tokenizer_(tokenizer), source_(source) {
    for (const Opening opening : {Opening::kSystem, Opening::kQuestion}) {
      std::optional<Cut> cut = CutConversation(tokenizer, source, opening);
      if (!cut) continue;
      cut_ = std::move(cut);
      NoteOpeners(cut_->gap(tokenizer, 0).Controls());
    }
  }

  std::optional<TokenId> OfAnswer() const {
    if (!cut_) return std::nullopt;
    // Behind the last answer; where nothing is there, as in templates that let an answer be
    // continued, behind the first.
    const Gap last = gap_from_end(0), inner = gap_from_end(2);
    const std::optional<TokenId> found = last.blank() ? inner.First() : last.First();
    return found && !Opens(*found) ? found : std::nullopt;
  }

  // Behind an answer that consists of calls of tools. The closing mark of one call is no end: more
  // calls may follow.
  std::optional<TokenId> OfToolCalls() const {
    if (!cut_) return std::nullopt;
    // Some templates want arguments as text, some refuse more than one call.
    constexpr std::pair<Form, size_t> kTries[] = {
        {Form::kParts, 2}, {Form::kText, 2}, {Form::kParts, 1}, {Form::kText, 1}};
    for (const auto& [form, calls] : kTries) {
      const std::optional<std::string> text = RenderToolCalls(form, calls);
      if (!text) continue;
      const size_t first = text->rfind(kArguments[0]), second = text->rfind(kArguments[1]);
      if (first == std::string::npos) continue;
      const bool both = second != std::string::npos && second > first;
      const Gap last(tokenizer_, Tail(*text, both ? second : first));
      const std::optional<TokenId> found = last.Last();
      if (!found || Opens(*found)) return std::nullopt;
      if (both &&
          Gap(tokenizer_, std::string_view(*text).substr(first, second - first)).Has(*found))
        return std::nullopt;
      return found;
    }
    return std::nullopt;
  }

 private:
  static std::string_view Tail(const std::string& text, size_t from) {
    const std::string_view tail = std::string_view(text).substr(from);
    return tail.size() <= kGapBytesMax ? tail : std::string_view();
  }

  Gap gap_from_end(size_t i) const { return cut_->gap(tokenizer_, cut_->gaps.size() - 1 - i); }

  // What stands before the first content can close no turn, but for a fixed turn of the template's
  // own: so only the first token, and the one next to the content, count as openers.
  void NoteOpeners(Ids controls) {
    // A BOS that stands before the text alone opens no turn; ChatML models may name "<|im_start|>".
    if (!controls.empty() && tokenizer_.bos_id() == controls.front() &&
        !gap_from_end(2).Has(controls.front()))
      controls.erase(controls.begin());
    if (controls.empty()) return;
    openers_.push_back(controls.front());
    openers_.push_back(controls.back());
  }

  bool Opens(TokenId id) const {
    if (tokenizer_.bos_id() == id ||
        std::find(openers_.begin(), openers_.end(), id) != openers_.end())
      return true;
    // It stands before an answer and not behind the one before: an assistant's header.
    return gap_from_end(1).Has(id) && !gap_from_end(2).Has(id);
  }

  std::optional<std::string> RenderToolCalls(Form form, size_t count) const {
    Json calls = Json::array();
    for (size_t i = 0; i < count; ++i) {
      const Json arguments = {{"city", kArguments[i]}};
      calls.push_back(
          {{"id", "call0000" + std::to_string(i)},
           {"type", "function"},
           {"function",
            {{"name", "lookup"},
             {"arguments", form == Form::kText ? Json(arguments.dump()) : arguments}}}});
    }
    const Json messages = {
        {{"role", "user"}, {"content", kContents[0]}},
        {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}}};
    const Json parameters = {
        {"type", "object"},
        {"properties", {{"city", {{"type", "string"}, {"description", "where"}}}}}};
    const Json tools = Json::array(
        {{{"type", "function"},
          {"function",
           {{"name", "lookup"}, {"description", "looks up"}, {"parameters", parameters}}}}});
    return Render(tokenizer_, source_, messages, tools.dump());
  }

  const Tokenizer& tokenizer_;
  const std::string_view source_;
  std::optional<Cut> cut_;
  Ids openers_;
};

}  // namespace

std::vector<EndToken> TurnEnds(const Tokenizer& tokenizer, std::string_view source) {
  const Finder finder(tokenizer, source);
  std::vector<EndToken> ends;
  if (const auto id = finder.OfAnswer())
    ends.push_back({*id, "the chat template closes an answer with it"});
  if (const auto id = finder.OfToolCalls())
    ends.push_back({*id, "the chat template closes tool calls with it"});
  return ends;
}

std::vector<EndToken> EndTokens(const Tokenizer& tokenizer, std::string_view override_source) {
  std::vector<EndToken> ends = tokenizer.end_tokens();
  std::vector<std::string_view> sources = {override_source};
  if (override_source.empty()) {
    sources.clear();
    for (const bool with_tools : {false, true}) {
      const std::string* source = SelectChatTemplate(tokenizer, with_tools);
      if (source != nullptr && (sources.empty() || sources.front() != *source))
        sources.push_back(*source);
    }
  }
  for (const std::string_view source : sources) {
    for (EndToken& end : TurnEnds(tokenizer, source)) {
      const auto same = [&end](const EndToken& known) {
        return known.id == end.id && known.source == end.source;
      };
      if (std::none_of(ends.begin(), ends.end(), same)) ends.push_back(std::move(end));
    }
  }
  return ends;
}

}  // namespace sixfold
