#include "mesh/reduction.h"

#include <algorithm>

namespace sixfold {

namespace {

// Bounds of `units` things dealt to at most `leaves` leaves, each unit `unit_size` long, cut off at `end`.
Leaves Deal(int64_t units, int64_t leaves, int64_t unit_size, int64_t end) {
  leaves = std::clamp<int64_t>(leaves, 1, units);
  Leaves out;
  for (int64_t v = 0; v <= leaves; ++v) out.begin.push_back(std::min(units * v / leaves * unit_size, end));
  return out;
}

}  // namespace

Leaves OutputProjectionLeaves(int heads, int head_dim, int leaves, int block) {
  const int64_t k = int64_t{heads} * head_dim;
  int heads_per_unit = 1;
  while (heads_per_unit < heads && (int64_t{heads_per_unit} * head_dim) % block != 0) ++heads_per_unit;
  const int64_t units = (heads + heads_per_unit - 1) / heads_per_unit;
  return Deal(units, heads < 16 ? units : leaves, int64_t{heads_per_unit} * head_dim, k);
}

Leaves DownProjectionLeaves(int64_t width, int leaves, int block) {
  const int64_t unit = std::max(32, block);
  return Deal((width + unit - 1) / unit, leaves, unit, width);
}

}  // namespace sixfold
