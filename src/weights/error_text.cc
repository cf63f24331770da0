#include "weights/error_text.h"

namespace sixfold {

std::string Quote(std::string_view text) {
  constexpr size_t kMaxChars = 100;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kMaxChars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  if (text.size() > kMaxChars) out += "...";
  return out + "'";
}

}  // namespace sixfold
