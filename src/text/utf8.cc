#include "text/utf8.h"

#include <algorithm>

namespace sixfold {
namespace {

// How many bytes a character has that begins with `lead`, and what its second byte may be (Unicode standard, table 3-7).
struct Lead {
  uint8_t bytes;  // 0: no character begins so
  uint8_t second_min;
  uint8_t second_max;
};

Lead LeadOf(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit ReadUtf8(std::string_view text) {
  const Lead lead = LeadOf(static_cast<uint8_t>(text[0]));
  if (lead.bytes == 0) return {Utf8Kind::kInvalid, 1};
  for (uint8_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kCharacter, lead.bytes};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Unit unit = ReadUtf8(text.substr(at));
    if (unit.kind != Utf8Kind::kCharacter) return at;
    at += unit.bytes;
  }
  return at;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  Utf8Stream stream(Utf8Repair::kPerPart);
  stream.Append(text, &out);
  stream.Finish(&out);
  return out;
}

void Utf8Stream::Replace(size_t bytes, std::string* out) const {
  const size_t count = repair_ == Utf8Repair::kPerByte ? bytes : 1;
  for (size_t i = 0; i < count; ++i) out->append(kReplacementCharacter);
}

void Utf8Stream::Append(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    held_.clear();
    joined.append(bytes);
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t valid = ValidUtf8Prefix(bytes);
    out->append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Utf8Unit unit = ReadUtf8(bytes);
    if (unit.kind == Utf8Kind::kIncomplete) {
      held_.assign(bytes);
      return;
    }
    Replace(unit.bytes, out);
    bytes.remove_prefix(unit.bytes);
  }
}

void Utf8Stream::Finish(std::string* out) {
  if (held_.empty()) return;
  Replace(held_.size(), out);
  held_.clear();
}

}  // namespace sixfold
