// The experts' arithmetic: rows in, each rank's parts of every slot's output out. Where rows come from and go to is
// expert_block's.
#pragma once

#include "model/forward.h"

namespace sixfold {

// expert_parts [nodes, slots, hidden]: this rank's parts of down(silu(gate) * up) of every slot, grouped by expert.
void RunExperts(ForwardContext& c, const LayerWeights& w);

}  // namespace sixfold
