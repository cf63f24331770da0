// The text module behind the gateway's interface.
#pragma once

#include <string>

#include "gateway/text_codec.h"
#include "text/tokenizer.h"

namespace sixfold::gateway {

// Thread rule: as TextCodec. `tokenizer` outlives it.
class TokenizerCodec final : public TextCodec {
 public:
  // chat_template: what --chat-template gave; "": the tokenizer's own, if it has one.
  TokenizerCodec(const Tokenizer& tokenizer, std::string chat_template);

  Result<std::vector<TokenId>> Encode(std::string_view text, SpecialTokens special) const override;
  Result<std::string> RenderChat(const std::string& messages_json, const std::string& kwargs_json,
                                 bool add_generation_prompt) const override;
  std::string TokenBytes(TokenId token) const override;
  bool IsSpecial(TokenId token) const override;
  std::unique_ptr<TextDecoder> NewDecoder(const DecoderOptions& options) const override;

 private:
  const Tokenizer& tokenizer_;
  const std::string chat_template_;  // "": the tokenizer's own
};

}  // namespace sixfold::gateway
