// Tokens to text as they come: whole characters only, and nothing that a stop string could still need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// Looks for stop strings in a text that comes in pieces. Keeps only what could still become one:
// less than the longest.
class StopSearch {
 public:
  struct Match {
    size_t stop = 0;             // index into the stop strings
    int64_t begin = 0, end = 0;  // bytes of the text
  };
  // The match that ends first, the longest of those; it ends in `piece`. Under kNo there is none,
  // but one that begins here may end later. `stops` is the same in every call.
  std::optional<Match> Append(const std::vector<std::string>& stops, std::string_view piece,
                              StopCheck check);
  int64_t size() const {
    return begin_ + static_cast<int64_t>(tail_.size());
  }                                              // of the text so far
  int64_t tail_begin() const { return begin_; }  // where a match that ends later may begin

 private:
  std::string tail_;
  int64_t begin_ = 0;  // of tail_ in the text
};

struct StreamOptions {
  SkipSpecial skip_special = SkipSpecial::kYes;
  std::vector<std::string> stop;  // empty strings are ignored
  IncludeStop include_stop = IncludeStop::kNo;
};

// A Detokenizer that ends at the first stop string. Stop strings are looked for in the text as it
// is shown, and in what the model wrote: the same with the special tokens that are left out of the
// text. Of several that end at the same character the longest counts. Thread rule: one thread at a
// time. The tokenizer outlives it.
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
  struct Hidden {
    int64_t begin = 0, end = 0;  // bytes of the written text
  };

  void AppendHidden(TokenId id, std::string* delta, StopCheck check);
  void AppendShown(std::string_view piece, std::string* delta, StopCheck check);
  void Stop(size_t index, int64_t cut, std::string* delta);
  void Release(std::string* delta);
  // How many bytes of the shown text come before a place of the written one.
  int64_t ShownBefore(int64_t written) const;

  const Tokenizer* tokenizer_;
  StreamOptions options_;
  Detokenizer detokenizer_;
  std::string held_;        // text that is decoded and not yet shown
  int64_t held_begin_ = 0;  // of held_ in the shown text
  StopSearch shown_;
  // The written text; as long as no token was hidden it is the shown one, and not searched a second
  // time.
  std::optional<StopSearch> written_;
  std::vector<Hidden> hidden_;      // in the tail of written_
  int64_t hidden_before_tail_ = 0;  // bytes of all hidden tokens before those
  std::optional<size_t> stop_index_;
};

}  // namespace sixfold
