// Attention in plain loops, one query at a time: the oracle of x86/attention_*.cc. Signatures as in OpsTable.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace sixfold {

int64_t RefAttentionScratch(const AttentionShape& shape);
void RefAttend(const AttentionPiece& piece, float* scratch);
void RefMergeNodes(const AttentionPiece& piece, const AttentionPartials& partials, float* scratch);
void RefMergePartials(float* left, const float* right, int64_t lanes, int v_dim);

}  // namespace sixfold
