// "Did you mean …?" for names that a person typed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sixfold {

// Changes that turn `a` into `b`: insertions, deletions, replacements and swaps of neighbours.
int EditDistance(std::string_view a, std::string_view b);

// The candidates closest to `name`, best first, at most `count`, none that is so far off that
// naming it would not help.
std::vector<std::string> NearestNames(std::string_view name,
                                      std::span<const std::string> candidates, size_t count);

// " (did you mean 'x'?)" or " (did you mean 'x' or 'y'?)", empty when nothing is close.
std::string DidYouMean(std::string_view name, std::span<const std::string> candidates,
                       size_t count = 1);

}  // namespace sixfold
