// Multi-head latent attention of one layer over this rank's heads, in its absorbed form for prefill and decode alike: keys
// and values are never expanded, docs/decisions/0010-mla-absorbed.md says why. DeepSeek-V2, arXiv:2405.04434.
#pragma once

#include "kv/storage.h"
#include "model/forward.h"

namespace sixfold {

// x += attention(norm(x)). Every rank of the tp group computes and keeps the whole latent; heads are dealt to ranks.
// layer: of the model's, in the rank's stage. Errors: the transport's.
Status MlaBlock(ForwardContext& c, int layer, KvStorage& kv);

}  // namespace sixfold
