// Text that people give in files, on stdin and as arguments: whether it is UTF-8, and where not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sixfold::apps {

// kInvalidArgument naming the first byte that is not UTF-8, by its place (from 0) and value.
Status CheckUtf8(std::string_view text);

// Whether bytes that are not UTF-8 are an error or become U+FFFD (--lossy).
enum class NotUtf8 : uint8_t { kRefused, kReplaced };
// The text of a file or of stdin, called `where` in the message. kInvalidFile.
Result<std::string> Utf8Text(std::string text, NotUtf8 otherwise, const std::string& where);

}  // namespace sixfold::apps
