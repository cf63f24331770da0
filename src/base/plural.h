// Counts in messages and tables: "1 rank", "2 ranks".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sixfold {

// The count and its noun. plural: where it is more than an "s" behind the singular ("entries").
inline std::string Plural(int64_t count, std::string_view singular, std::string_view plural = {}) {
  std::string text = std::to_string(count) + " ";
  if (count == 1) return text.append(singular);
  return plural.empty() ? text.append(singular) + "s" : text.append(plural);
}

}  // namespace sixfold
