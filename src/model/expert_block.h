// Experts of one sparse layer: gate, rows to experts, sums back to their tokens.
#pragma once

#include <cstddef>

#include "model/forward.h"

namespace sixfold {

// x += experts(norm(x)). sparse_index counts the model's sparse layers. Errors: the transport's.
Status SparseBlock(ForwardContext& c, int layer, size_t sparse_index);

}  // namespace sixfold
