#include "base/nearest.h"

#include <algorithm>
#include <utility>

namespace sixfold {
namespace {

// Longer names are cut: the distance is quadratic, and no name of ours comes near this.
constexpr size_t kMaxLength = 200;

}  // namespace

int EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kMaxLength);
  b = b.substr(0, kMaxLength);
  // Three rows of the table: `two_back` is what a swap of neighbours needs.
  std::vector<int> two_back(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    two_back.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], two_back[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::vector<std::string> NearestNames(std::string_view name,
                                      std::span<const std::string> candidates, size_t count) {
  std::vector<std::pair<int, const std::string*>> ranked;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size());
    const bool contained = name.size() >= 3 && candidate.find(name) != std::string::npos;
    const int distance = contained ? 1 : EditDistance(name, candidate);
    if (distance <= static_cast<int>(longer / 3 + 1) && distance < static_cast<int>(longer))
      ranked.emplace_back(distance, &candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, candidate] : ranked) {
    if (names.size() == count) break;
    if (std::find(names.begin(), names.end(), *candidate) == names.end())
      names.push_back(*candidate);
  }
  return names;
}

std::string DidYouMean(std::string_view name, std::span<const std::string> candidates,
                       size_t count) {
  const std::vector<std::string> names = NearestNames(name, candidates, count);
  if (names.empty()) return "";
  std::string text = " (did you mean ";
  for (size_t i = 0; i < names.size(); ++i) text += (i ? " or '" : "'") + names[i] + "'";
  return text + "?)";
}

}  // namespace sixfold
