// A model without a tokenizer behind the gateway's interface: prompts and answers are token ids.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/text_codec.h"

namespace sixfold::gateway {

// Text and chats are refused with kInvalidArgument, answers have the text "", log probabilities
// name their tokens "token_id:7". Stateless. Thread rule: any thread.
class TokenIdCodec final : public TextCodec {
 public:
  bool has_text() const override { return false; }
  Result<std::vector<TokenId>> Encode(std::string_view text, SpecialTokens special) const override;
  Result<std::string> RenderChat(const std::string& messages_json, const std::string& kwargs_json,
                                 bool add_generation_prompt) const override;
  std::string TokenBytes(TokenId token) const override;
  bool IsSpecial(TokenId) const override { return true; }
  std::unique_ptr<TextDecoder> NewDecoder(const DecoderOptions& options) const override;
};

}  // namespace sixfold::gateway
