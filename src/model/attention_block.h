// Attention of one layer over this rank's heads.
#pragma once

#include "kv/storage.h"
#include "model/forward.h"

namespace sixfold {

// x += attention(norm(x)). layer: of the model's, in the rank's stage. Errors: the transport's.
Status AttentionBlock(ForwardContext& c, int layer, KvStorage& kv);

}  // namespace sixfold
