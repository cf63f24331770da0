// sixfold tokenize and detokenize: text to token ids and back.
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/loading.h"
#include "apps/output.h"
#include "apps/text_input.h"
#include "apps/text_loading.h"
#include "text/utf8.h"

namespace sixfold::apps {
namespace {

using nlohmann::json;

constexpr size_t kStdinBytesMax = size_t{256} << 20;

Status BadInput(const std::string& what) { return InvalidFile("stdin: " + what); }

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Calls `answer` with each line that is not blank and prints what it gives, a line each.
Status ForEachLine(std::string_view text,
                   const std::function<Result<std::string>(const std::string&)>& answer) {
  std::string out;
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<std::string> answered = answer(line);
    if (!answered.ok()) return answered.status().WithContext("line " + std::to_string(number));
    out += *answered + "\n";
    if (out.size() > size_t{1} << 16) {
      SF_RETURN_IF_ERROR(Print(out));
      out.clear();
    }
  }
  return Print(out);
}

std::string IdsJson(const std::vector<TokenId>& ids) { return Dump(json{{"ids", ids}}); }

// {"ids": […]} or a plain list.
Result<std::vector<TokenId>> IdsFromJson(const json& value) {
  const json* list = &value;
  if (value.is_object()) {
    const auto found = value.find("ids");
    if (found == value.end()) return BadInput("expected {\"ids\": […]}");
    list = &*found;
  }
  if (!list->is_array()) return BadInput("expected a list of token ids");
  std::vector<TokenId> ids;
  for (const json& element : *list) {
    if (!element.is_number_integer() || element < 0 || element > INT32_MAX)
      return BadInput(Dump(element) + " is no token id");
    ids.push_back(element.get<TokenId>());
  }
  return ids;
}

// JSON, or numbers with anything of " ,\n\t" between them.
Result<std::vector<TokenId>> IdsFromText(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && (text[first] == '{' || text[first] == '[')) {
    const json value = json::parse(text, nullptr, false);
    if (value.is_discarded()) return BadInput("no valid JSON");
    return IdsFromJson(value);
  }
  std::vector<TokenId> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (std::string_view(" ,\t\r\n").find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    TokenId id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0) {
      return BadInput("'" +
                      ReplaceInvalidUtf8(text.substr(static_cast<size_t>(at - text.data()), 20)) +
                      "' is no token id");
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

// The tokenizer's own ids only: Decode passes over others, so that a text would silently lack them.
Result<std::string> DecodeKnown(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) {
    if (tokenizer.HasToken(id)) continue;
    return BadInput(std::to_string(id) + " is no token id of this tokenizer, whose ids are " +
                    (id < tokenizer.vocab_size() ? "not all in use" : "0 to " + std::to_string(tokenizer.vocab_size() - 1)));
  }
  return tokenizer.Decode(ids, SkipSpecial::kNo);
}

// --lossy or an error that also names the flag.
Result<std::string> InputText(const Options& options, std::string text) {
  const bool lossy = options.Flag("lossy");
  Result<std::string> valid = Utf8Text(std::move(text), lossy ? NotUtf8::kReplaced : NotUtf8::kRefused, "stdin");
  if (!valid.ok()) return InvalidFile(valid.status().message() + "; --lossy puts U+FFFD in the place of such bytes");
  return valid;
}

Status CheckForm(const Options& options) {
  if (options.Flag("json") && options.Flag("jsonl"))
    return InvalidArgument("--json and --jsonl exclude each other");
  if (StdinIsTerminal()) Remark("(reading stdin, Ctrl-D ends)");
  return OkStatus();
}

}  // namespace

Status RunTokenize(const Options& options) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  SF_RETURN_IF_ERROR(ApplyAddBos(options, tokenizer.get()));
  SF_RETURN_IF_ERROR(CheckForm(options));
  SF_ASSIGN_OR_RETURN(const std::string input, ReadStdin(kStdinBytesMax));
  const AddSpecial add = options.Flag("no-special") ? AddSpecial::kNo : AddSpecial::kYes;
  if (options.Flag("jsonl")) {
    return ForEachLine(input, [&](const std::string& line) -> Result<std::string> {
      SF_ASSIGN_OR_RETURN(const std::string text, InputText(options, line));
      const json value = json::parse(text, nullptr, false);
      if (value.is_discarded()) return BadInput("no valid JSON");
      if (!value.is_string()) return BadInput("expected one JSON string");
      SF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                          tokenizer->Encode(value.get_ref<const std::string&>(), add));
      return IdsJson(ids);
    });
  }
  SF_ASSIGN_OR_RETURN(const std::string text, InputText(options, input));
  SF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer->Encode(text, add));
  if (options.Flag("json")) return Print(IdsJson(ids) + "\n");
  std::string out;
  for (const TokenId id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
  return Print(out + "\n");
}

Status RunDetokenize(const Options& options) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  SF_RETURN_IF_ERROR(CheckForm(options));
  SF_ASSIGN_OR_RETURN(const std::string input, ReadStdin(kStdinBytesMax));
  if (options.Flag("jsonl")) {
    return ForEachLine(input, [&](const std::string& line) -> Result<std::string> {
      const json value = json::parse(line, nullptr, false);
      if (value.is_discarded()) return BadInput("no valid JSON");
      SF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, IdsFromJson(value));
      SF_ASSIGN_OR_RETURN(const std::string text, DecodeKnown(*tokenizer, ids));
      return Dump(json{{"text", text}});
    });
  }
  SF_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, IdsFromText(input));
  SF_ASSIGN_OR_RETURN(const std::string text, DecodeKnown(*tokenizer, ids));
  if (options.Flag("json")) return Print(Dump(json{{"text", text}}) + "\n");
  return Print(StdoutIsTerminal() ? text + "\n" : text);
}

}  // namespace sixfold::apps
