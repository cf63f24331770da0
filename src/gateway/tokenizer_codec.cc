#include "gateway/tokenizer_codec.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/chat_template.h"
#include "text/stream_decoder.h"

namespace sixfold::gateway {
namespace {

class StreamTextDecoder final : public TextDecoder {
 public:
  StreamTextDecoder(const Tokenizer* tokenizer, StreamOptions options)
      : decoder_(tokenizer, std::move(options)) {}

  std::string Push(TokenId token, StopCheck check) override {
    std::string text;
    decoder_.Append(token, &text,
                    check == StopCheck::kYes ? sixfold::StopCheck::kYes : sixfold::StopCheck::kNo);
    return text;
  }
  std::string Finish() override {
    std::string text;
    decoder_.Finish(&text);
    return text;
  }
  const std::string* stop_string() const override { return decoder_.stop_string(); }

 private:
  StreamDecoder decoder_;
};

// Tools come to a template as one of its variables.
bool HasTools(const std::string& kwargs_json) {
  const auto kwargs = nlohmann::json::parse(kwargs_json, nullptr, false);
  if (!kwargs.is_object() || !kwargs.contains("tools")) return false;
  const auto& tools = kwargs["tools"];
  return tools.is_array() && !tools.empty();
}

}  // namespace

TokenizerCodec::TokenizerCodec(const Tokenizer& tokenizer, std::string chat_template)
    : tokenizer_(tokenizer), chat_template_(std::move(chat_template)) {}

Result<std::vector<TokenId>> TokenizerCodec::Encode(std::string_view text,
                                                    SpecialTokens special) const {
  return tokenizer_.Encode(text,
                           special == SpecialTokens::kAdd ? AddSpecial::kYes : AddSpecial::kNo);
}

Result<std::string> TokenizerCodec::RenderChat(const std::string& messages_json,
                                               const std::string& kwargs_json,
                                               bool add_generation_prompt) const {
  const std::string* source = chat_template_.empty()
                                  ? SelectChatTemplate(tokenizer_, HasTools(kwargs_json))
                                  : &chat_template_;
  if (source == nullptr) {
    return InvalidArgument(
        "this model has no chat template: start the server with --chat-template FILE, or use "
        "/v1/completions");
  }
  ChatTemplateOptions options{.add_generation_prompt = add_generation_prompt,
                              .kwargs_json = kwargs_json};
  options.special_tokens = tokenizer_.special_tokens();
  return RenderChatTemplate(*source, messages_json, options);
}

std::string TokenizerCodec::TokenBytes(TokenId token) const {
  return std::string(tokenizer_.TokenBytes(token));
}

bool TokenizerCodec::IsSpecial(TokenId token) const { return tokenizer_.IsSpecial(token); }

std::unique_ptr<TextDecoder> TokenizerCodec::NewDecoder(const DecoderOptions& options) const {
  StreamOptions stream{.stop = options.stop};
  stream.skip_special =
      options.special == DecoderOptions::Special::kSkip ? SkipSpecial::kYes : SkipSpecial::kNo;
  stream.include_stop =
      options.stop_string == DecoderOptions::Stop::kInclude ? IncludeStop::kYes : IncludeStop::kNo;
  return std::make_unique<StreamTextDecoder>(&tokenizer_, std::move(stream));
}

}  // namespace sixfold::gateway
