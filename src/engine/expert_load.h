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
  std::vector<double> imbalance;  // [sparse layers]: R_imbalance, assignments of the busiest ep place over the mean; 0: none yet
  int64_t dispatch_bytes = 0, combine_bytes = 0;     // that left a rank
  double dispatch_seconds = 0, combine_seconds = 0;  // of the rank that spent most, waiting included

  int64_t assignments() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }
  double imbalance_mean() const {  // over layers
    if (imbalance.empty()) return 0;
    return std::accumulate(imbalance.begin(), imbalance.end(), 0.0) / static_cast<double>(imbalance.size());
  }
  double imbalance_max() const { return imbalance.empty() ? 0 : *std::max_element(imbalance.begin(), imbalance.end()); }
};

// tokens: [sparse layers of the model, experts]. Bytes and seconds stay 0.
ExpertLoad LoadOf(const Layout& layout, std::vector<int64_t> tokens);
// Of all ranks' reports, [world].
ExpertLoad LoadOf(const Layout& layout, const std::vector<RankReport>& reports);

}  // namespace sixfold
