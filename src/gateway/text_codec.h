// What the gateway needs of a tokenizer and a chat template. The text module stands behind it in
// the product (tokenizer_codec.h); tests use one token a byte (testing/byte_codec.h) and need no
// tokenizer library.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace sixfold::gateway {

// Turns the tokens of one choice into text, a token at a time. Thread rule: one thread at a time.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  // The text that can be shown now: whole characters, and nothing that a stop string could still
  // need. Stop strings are looked for in the text as it is shown, and in the same with the special
  // tokens that are left out. After one was found later tokens give nothing. kNo: stop strings do
  // not count yet (min_tokens).
  enum class StopCheck : uint8_t { kNo, kYes };
  virtual std::string Push(TokenId token, StopCheck check) = 0;
  virtual std::string Finish() = 0;                    // what was held back; the last call
  virtual const std::string* stop_string() const = 0;  // the one that was found, or nullptr
};

enum class SpecialTokens : uint8_t { kNone, kAdd };

struct DecoderOptions {
  std::vector<std::string> stop;
  enum class Special : uint8_t {
    kSkip,
    kKeep
  } special = Special::kSkip;  // written into the text or not
  enum class Stop : uint8_t { kLeaveOut, kInclude } stop_string = Stop::kLeaveOut;
};

// Thread rule: any thread, several at a time.
class TextCodec {
 public:
  virtual ~TextCodec() = default;
  // false: there is no tokenizer, only token ids are served (token_id_codec.h).
  virtual bool has_text() const { return true; }
  virtual Result<std::vector<TokenId>> Encode(std::string_view text,
                                              SpecialTokens special) const = 0;
  // The prompt that the model's template makes of a JSON array of messages. kwargs: a JSON object
  // of further variables. kInvalidArgument carries the template's own words (raise_exception), or
  // says that there is no template.
  virtual Result<std::string> RenderChat(const std::string& messages_json,
                                         const std::string& kwargs_json,
                                         bool add_generation_prompt) const = 0;
  // What the token adds to a text; may be a part of a UTF-8 sequence. "" for ids without a token.
  virtual std::string TokenBytes(TokenId token) const = 0;
  virtual bool IsSpecial(TokenId token) const = 0;
  virtual std::unique_ptr<TextDecoder> NewDecoder(const DecoderOptions& options) const = 0;
};

}  // namespace sixfold::gateway
