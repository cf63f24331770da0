#include "gateway/testing/byte_codec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gateway/json_writer.h"

namespace sixfold::gateway {
namespace {

// Keeps the whole text and looks through all of it each time: slow, and plainly right.
class ByteDecoder final : public TextDecoder {
 public:
  explicit ByteDecoder(const DecoderOptions& options) : options_(options) {}

  std::string Push(TokenId token, StopCheck check) override {
    if (found_ >= 0) return "";
    const std::string piece = ByteCodec().TokenBytes(token);
    const bool hidden = token >= kByteBos && options_.special == DecoderOptions::Special::kSkip;
    shown_before_.resize(written_.size() + piece.size(), text_.size());
    written_ += piece;
    if (hidden) return check == StopCheck::kYes ? FindInHidden() : "";
    text_ += piece;
    if (check == StopCheck::kNo) search_from_ = text_.size();
    size_t end = std::string::npos;
    for (size_t i = 0; i < options_.stop.size(); ++i) {
      const size_t at = text_.find(options_.stop[i], search_from_);
      if (at < end) {
        end = at;
        found_ = static_cast<int>(i);
      }
    }
    const bool include = options_.stop_string == DecoderOptions::Stop::kInclude;
    if (found_ >= 0) return Show(end + (include ? stop_string()->size() : 0));
    size_t safe = text_.size();
    for (const std::string& stop : options_.stop) {
      for (size_t length = std::min(stop.size(), text_.size() - search_from_); length > 0;
           --length) {
        if (text_.ends_with(stop.substr(0, length))) {
          safe = std::min(safe, text_.size() - length);
          break;
        }
      }
    }
    // A character that may still be completed is at most its last three bytes.
    for (size_t back = 1; back <= 3 && back <= safe; ++back) {
      const auto c = static_cast<unsigned char>(text_[safe - back]);
      if ((c & 0xc0) == 0x80) continue;
      const size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
      if (length > back) safe -= back;
      break;
    }
    return Show(safe);
  }
  std::string Finish() override { return found_ >= 0 ? "" : Show(text_.size()); }
  const std::string* stop_string() const override {
    return found_ < 0 ? nullptr : &options_.stop[static_cast<size_t>(found_)];
  }

 private:
  // A stop string that ends with the special token just left out of the text.
  std::string FindInHidden() {
    for (size_t i = 0; i < options_.stop.size(); ++i) {
      const std::string& stop = options_.stop[i];
      if (!written_.ends_with(stop)) continue;
      found_ = static_cast<int>(i);
      text_.resize(shown_before_[written_.size() - stop.size()]);
      if (options_.stop_string == DecoderOptions::Stop::kInclude) text_ += stop;
      return Show(text_.size());
    }
    return "";
  }
  std::string Show(size_t end) {
    if (end <= shown_) return "";
    std::string part = text_.substr(shown_, end - shown_);
    shown_ = end;
    return part;
  }

  const DecoderOptions options_;
  std::string text_;
  std::string written_;               // text_ and the special tokens that are left out of it
  std::vector<size_t> shown_before_;  // [bytes of written_]: bytes of text_ before each
  size_t search_from_ = 0;
  size_t shown_ = 0;
  int found_ = -1;
};

}  // namespace

Result<std::vector<TokenId>> ByteCodec::Encode(std::string_view text, SpecialTokens special) const {
  std::vector<TokenId> ids;
  if (special == SpecialTokens::kAdd) ids.push_back(kByteBos);
  for (const unsigned char c : text) ids.push_back(c);
  return ids;
}

Result<std::string> ByteCodec::RenderChat(const std::string& messages_json,
                                          const std::string& kwargs_json,
                                          bool add_generation_prompt) const {
  std::string text;
  for (const auto& message : nlohmann::json::parse(messages_json)) {
    const std::string content =
        message["content"].is_string() ? message["content"].get<std::string>() : "null";
    if (content == "raise") return InvalidArgument("the template refuses this conversation");
    text += "[" + message["role"].get<std::string>() + "]" + content + "\n";
  }
  const auto kwargs = nlohmann::json::parse(kwargs_json);
  if (kwargs.contains("suffix")) text += kwargs["suffix"].get<std::string>();
  if (add_generation_prompt) text += "[assistant]";
  return text;
}

std::string ByteCodec::TokenBytes(TokenId token) const {
  if (token >= 0 && token < 256) return std::string(1, static_cast<char>(token));
  if (token == kByteBos) return "<bos>";
  if (token == kByteEos) return "<eos>";
  if (token == kByteTurn) return "<turn>";
  return "";
}

std::unique_ptr<TextDecoder> ByteCodec::NewDecoder(const DecoderOptions& options) const {
  return std::make_unique<ByteDecoder>(options);
}

}  // namespace sixfold::gateway
