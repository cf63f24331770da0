#include "gateway/token_id_codec.h"

namespace sixfold::gateway {
namespace {

class SilentDecoder final : public TextDecoder {
 public:
  std::string Push(TokenId, StopCheck) override { return ""; }
  std::string Finish() override { return ""; }
  const std::string* stop_string() const override { return nullptr; }
};

}  // namespace

Result<std::vector<TokenId>> TokenIdCodec::Encode(std::string_view, SpecialTokens) const {
  return InvalidArgument(
      "this server has no tokenizer: give the prompt as token ids, or start the server with "
      "--tokenizer");
}

Result<std::string> TokenIdCodec::RenderChat(const std::string&, const std::string&, bool) const {
  return InvalidArgument(
      "this server has no tokenizer, which a chat needs: start it with --tokenizer, or send token "
      "ids to /v1/completions");
}

std::string TokenIdCodec::TokenBytes(TokenId token) const {
  return "token_id:" + std::to_string(token);
}

std::unique_ptr<TextDecoder> TokenIdCodec::NewDecoder(const DecoderOptions&) const {
  return std::make_unique<SilentDecoder>();
}

}  // namespace sixfold::gateway
