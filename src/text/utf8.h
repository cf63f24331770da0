// UTF-8 as the Unicode standard defines it (no surrogates, nothing above U+10FFFF, no overlong forms), and the repair of
// bytes that are not: one U+FFFD for each maximal part of a character, as Python's errors="replace" writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sixfold {

// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind : uint8_t {
  kCharacter,   // a whole character
  kIncomplete,  // all that is there could begin a character
  kInvalid,     // no character begins so; `bytes` are the maximal part of one, at least 1
};

struct Utf8Unit {
  Utf8Kind kind;
  uint8_t bytes;  // 1 to 4
};

// What stands at the start of `text`, which is not empty.
Utf8Unit ReadUtf8(std::string_view text);

// Bytes before the first one that is not UTF-8; text.size() when all are.
size_t ValidUtf8Prefix(std::string_view text);
inline bool IsValidUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

std::string ReplaceInvalidUtf8(std::string_view text);

enum class Utf8Repair : uint8_t {
  kPerPart,  // one U+FFFD for each maximal part of a character
  kPerByte,  // one for each byte, as HF's ByteFallback decoder writes
};

// Makes valid UTF-8 of bytes that come in pieces. Holds back at most 3 bytes: those that could still become a character.
// Thread rule: one thread at a time.
class Utf8Stream {
 public:
  explicit Utf8Stream(Utf8Repair repair) : repair_(repair) {}
  void Append(std::string_view bytes, std::string* out);
  // Writes what is held back as invalid.
  void Finish(std::string* out);

 private:
  void Replace(size_t bytes, std::string* out) const;

  Utf8Repair repair_;
  std::string held_;  // the start of a character, 0 to 3 bytes
};

}  // namespace sixfold
