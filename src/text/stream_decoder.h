// Tokens to text as they come: whole characters only, and nothing that a stop string could still need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace sixfold {

// Tokens to valid UTF-8, without stop strings. The texts that Append and Finish add, joined, are Tokenizer::Decode of the ids.
// Thread rule: one thread at a time. The tokenizer outlives it.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer* tokenizer, SkipSpecial skip);
  // Adds to *out what the token makes certain. Ids without a token add nothing.
  void Append(TokenId id, std::string* out);
  // Adds what is held back: bytes that became no character, as U+FFFD. The last call.
  void Finish(std::string* out) { utf8_.Finish(out); }

 private:
  const Tokenizer* tokenizer_;
  SkipSpecial skip_;
  bool opened_ = false;  // a token was written
  uint32_t strip_left_;
  Utf8Stream utf8_;
};

enum class IncludeStop : uint8_t { kNo, kYes };
// Whether stop strings count for this token (they don't while fewer than min_tokens were made).
enum class StopCheck : uint8_t { kNo, kYes };

struct StreamOptions {
  SkipSpecial skip_special = SkipSpecial::kYes;
  std::vector<std::string> stop;  // empty strings are ignored
  IncludeStop include_stop = IncludeStop::kNo;
};

// A Detokenizer that ends at the first stop string. Of several that end at the same character the longest counts.
// Thread rule: one thread at a time. The tokenizer outlives it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer* tokenizer, StreamOptions options);

  // Adds to *delta the text that can be shown now. Once stopped(), later tokens add nothing.
  void Append(TokenId id, std::string* delta, StopCheck check = StopCheck::kYes);
  // Adds what was held back. The last call.
  void Finish(std::string* delta);

  bool stopped() const { return stop_index_.has_value(); }
  // The stop string that was found, or nullptr.
  const std::string* stop_string() const { return stopped() ? &options_.stop[*stop_index_] : nullptr; }

 private:
  void Release(std::string* delta, StopCheck check);
  // Looks for the stop string that ends first. True if there is one.
  bool FindStop(std::string* delta);
  // Bytes at the end of held_ that are the beginning of a stop string.
  size_t BytesToHold() const;

  StreamOptions options_;
  Detokenizer detokenizer_;
  std::string held_;  // text that is decoded and not yet shown
  std::optional<size_t> stop_index_;
};

}  // namespace sixfold
