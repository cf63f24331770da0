// Attention over registers of 8 and 16 lanes; signatures as in OpsTable.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace sixfold {

int64_t Avx2AttentionScratch(const AttentionShape& shape);
void Avx2Attend(const AttentionPiece& piece, float* scratch);
void Avx2MergeNodes(const AttentionPiece& piece, const AttentionPartials& partials, float* scratch);
void Avx2MergePartials(float* left, const float* right, int64_t lanes, int v_dim);

int64_t Avx512AttentionScratch(const AttentionShape& shape);
void Avx512Attend(const AttentionPiece& piece, float* scratch);
void Avx512MergeNodes(const AttentionPiece& piece, const AttentionPartials& partials, float* scratch);
void Avx512MergePartials(float* left, const float* right, int64_t lanes, int v_dim);

}  // namespace sixfold
