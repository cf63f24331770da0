// A pass over JSON text before a parser sees it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sixfold {

struct JsonLimits {
  size_t depth_max = 16;                    // nested objects and arrays
  size_t run_bytes_max = size_t{16} << 20;  // one string, number or stretch of white space
};

// kInvalidFile, naming `file` and the byte, when the text goes beyond a limit. Parsers hold several
// copies of the token they read (and of the one they complain about), so this is what bounds their
// memory. Says nothing about validity.
Status CheckJsonLimits(std::string_view text, const JsonLimits& limits, const std::string& file);

}  // namespace sixfold
