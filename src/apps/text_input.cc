#include "apps/text_input.h"

#include <fmt/format.h>

#include "text/utf8.h"

namespace sixfold::apps {

Status CheckUtf8(std::string_view text) {
  const size_t at = ValidUtf8Prefix(text);
  if (at == text.size()) return OkStatus();
  return InvalidArgument(fmt::format("byte {} (0x{:02x}) is not UTF-8", at, static_cast<unsigned char>(text[at])));
}

Result<std::string> Utf8Text(std::string text, NotUtf8 otherwise, const std::string& where) {
  const Status valid = CheckUtf8(text);
  if (valid.ok()) return text;
  if (otherwise == NotUtf8::kReplaced) return ReplaceInvalidUtf8(text);
  return InvalidFile(where + ": " + valid.message());
}

}  // namespace sixfold::apps
