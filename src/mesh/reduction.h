// Which leaves a reduction has that tensor parallelism may cut. A property of the model and of --reduction-leaves, never
// of a run's layout: every layout adds the same leaves in the same tree (kernels/numerics.h).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/numerics.h"

namespace sixfold {

inline constexpr int kDefaultReductionLeaves = 8;

// Output projection: whole query heads; one head a leaf below 16 heads, else about `leaves` equal shares of heads. A
// leaf bound must also be a multiple of `block` (the weight type's block along K, 1 if none): heads join until it is.
Leaves OutputProjectionLeaves(int heads, int head_dim, int leaves, int block);

// FFN and expert down projection: about `leaves` shares of whole units of max(32, block) columns, unit u of U in leaf v
// when U*v/leaves <= u < U*(v+1)/leaves; the last unit may be short. Fewer units than leaves: one a leaf.
Leaves DownProjectionLeaves(int64_t width, int leaves, int block);

}  // namespace sixfold
