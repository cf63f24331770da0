// The experts that every token meets, as one dense FFN beside the routed ones. tp cuts it like a dense FFN: a sum of its own,
// over leaves of its own, on the tp group wherever the routed experts live.
#pragma once

#include "model/forward.h"

namespace sixfold {

// x += shared(normed): called after the routed experts were added, with their input still in s.normed. Nothing in a model
// without shared experts. Errors: the transport's.
Status SharedExpert(ForwardContext& c, const LayerWeights& w);

}  // namespace sixfold
