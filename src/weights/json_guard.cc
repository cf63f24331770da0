#include "weights/json_guard.h"

namespace sixfold {

Status CheckJsonLimits(std::string_view text, const JsonLimits& limits, const std::string& file) {
  size_t depth = 0;
  size_t run_begin = 0;  // just behind the last character that separates tokens
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (i - run_begin > limits.run_bytes_max) {
      return InvalidFile(file + ": JSON: the token at byte " + std::to_string(run_begin) +
                         " is longer than " + std::to_string(limits.run_bytes_max) + " bytes");
    }
    if (in_string && c == '\\') {
      ++i;
      continue;
    }
    if (in_string && c != '"') continue;
    switch (c) {
      case '"': in_string = !in_string; break;
      case '{':
      case '[':
        if (++depth > limits.depth_max) {
          return InvalidFile(file + ": JSON: nesting deeper than " +
                             std::to_string(limits.depth_max) + " at byte " + std::to_string(i));
        }
        break;
      case '}':
      case ']':
        if (depth > 0) --depth;
        break;
      case ',':
      case ':': break;
      default: continue;
    }
    run_begin = i + 1;
  }
  return OkStatus();
}

}  // namespace sixfold
