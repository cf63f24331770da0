// The one fake of TextCodec: a token a byte (0 to 255), then specials; the plainest chat template.
#pragma once

#include "gateway/text_codec.h"

namespace sixfold::gateway {

constexpr TokenId kByteBos = 256, kByteEos = 257, kByteTurn = 258, kByteUnused = 259;
constexpr int64_t kByteVocab = 260;

// RenderChat gives "[role]content\n" for each message, then "[assistant]" when a prompt for the
// answer is wanted. A message that says "raise" makes the template fail. Stateless. Thread rule:
// any thread.
class ByteCodec final : public TextCodec {
 public:
  Result<std::vector<TokenId>> Encode(std::string_view text, SpecialTokens special) const override;
  Result<std::string> RenderChat(const std::string& messages_json, const std::string& kwargs_json,
                                 bool add_generation_prompt) const override;
  std::string TokenBytes(TokenId token) const override;
  bool IsSpecial(TokenId token) const override { return token >= kByteBos && token <= kByteUnused; }
  std::unique_ptr<TextDecoder> NewDecoder(const DecoderOptions& options) const override;
};

}  // namespace sixfold::gateway
