// What a model's experts did, in the figures that people watch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace sixfold {

class Layout;
struct RankReport;

// Since start.
struct ExpertLoad {
  int experts = 0;                // 0: the model has none
  std::vector<int64_t> tokens;    // [sparse layers, experts]: assignments
  // [sparse layers]: assignments of the busiest over the mean, at least 1; 0: none yet. Of experts (R_imbalance of 000 §4.3), and
  // of the places that ep deals them to.
  std::vector<double> imbalance, place_imbalance;
  int64_t dispatch_bytes = 0, combine_bytes = 0;     // that left a rank
  double dispatch_seconds = 0, combine_seconds = 0;  // of the rank that spent most, waiting included

  int64_t assignments() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }
};

inline double MeanOf(const std::vector<double>& of_layers) {
  if (of_layers.empty()) return 0;
  return std::accumulate(of_layers.begin(), of_layers.end(), 0.0) / static_cast<double>(of_layers.size());
}
inline double MaxOf(const std::vector<double>& of_layers) {
  return of_layers.empty() ? 0 : *std::max_element(of_layers.begin(), of_layers.end());
}

// Of a model that has computed nothing yet.
ExpertLoad EmptyLoad(const Layout& layout);
// tokens: [sparse layers of the model, experts]. Bytes and seconds stay 0.
ExpertLoad LoadOf(const Layout& layout, std::vector<int64_t> tokens);
// Of all ranks' reports, [world].
ExpertLoad LoadOf(const Layout& layout, const std::vector<RankReport>& reports);

}  // namespace sixfold
