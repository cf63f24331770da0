#include "engine/expert_load.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/rank_messages.h"
#include "mesh/layout.h"

namespace sixfold {

namespace {

int64_t TokenCounters(const ModelShape& m) { return std::count(m.sparse.begin(), m.sparse.end(), true) * m.experts; }

double BusiestOverMean(std::span<const int64_t> counts) {
  int64_t sum = 0, busiest = 0;
  for (const int64_t count : counts) {
    sum += count;
    busiest = std::max(busiest, count);
  }
  return sum == 0 ? 0 : static_cast<double>(busiest) * static_cast<double>(counts.size()) / static_cast<double>(sum);
}

}  // namespace

ExpertLoad LoadOf(const Layout& layout, std::vector<int64_t> tokens) {
  const ModelShape& m = layout.shape();
  ExpertLoad load{.experts = m.experts, .tokens = std::move(tokens)};
  size_t first = 0;  // of the layer in tokens
  for (int layer = 0; layer < m.layers(); ++layer) {
    if (!m.sparse[layer]) continue;
    const auto of_layer = std::span(load.tokens).subspan(first, m.experts);
    const ExpertPlacement placement = layout.PlacementOf(layer);
    std::vector<int64_t> of_places(layout.expert_mesh().ep(), 0);
    for (int e = 0; e < m.experts; ++e) of_places[placement[e]] += of_layer[e];
    load.imbalance.push_back(BusiestOverMean(of_layer));
    load.place_imbalance.push_back(BusiestOverMean(of_places));
    first += m.experts;
  }
  return load;
}

ExpertLoad EmptyLoad(const Layout& layout) {
  if (layout.shape().experts == 0) return {};
  return LoadOf(layout, std::vector<int64_t>(TokenCounters(layout.shape()), 0));
}

ExpertLoad LoadOf(const Layout& layout, const std::vector<RankReport>& reports) {
  const ModelShape& m = layout.shape();
  constexpr double kSecond = 1e9;
  std::vector<int64_t> tokens(TokenCounters(m), 0);
  for (const RankReport& report : reports) {
    const int64_t first_layer = layout.Shard(report.rank).layers.begin;
    const int64_t first = std::count(m.sparse.begin(), m.sparse.begin() + first_layer, true) * m.experts;
    for (size_t i = 0; i < report.expert_tokens.size(); ++i) tokens[first + i] += report.expert_tokens[i];
  }
  ExpertLoad load = LoadOf(layout, std::move(tokens));
  for (const RankReport& report : reports) {
    for (const auto& [key, entry] : report.ledger) {
      if (key.op == CommOp::kDispatch) load.dispatch_bytes += entry.bytes;
      if (key.op == CommOp::kCombine) load.combine_bytes += entry.bytes;
    }
    load.dispatch_seconds = std::max(load.dispatch_seconds, static_cast<double>(report.dispatch_ns) / kSecond);
    load.combine_seconds = std::max(load.combine_seconds, static_cast<double>(report.combine_ns) / kSecond);
  }
  return load;
}

}  // namespace sixfold
