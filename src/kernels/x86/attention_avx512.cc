#include "kernels/x86/attention.h"

// gcc 12 warns about the undefined operands inside its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/math.h"
#include "kernels/x86/target.h"
#include "kernels/x86/unroll.h"

SF_BEGIN_TARGET(SF_TARGET_AVX512)
namespace sixfold {
namespace {

// In this order: each part uses the ones before it.
// clang-format off
#include "kernels/x86/vector_avx512.inc"
#include "kernels/x86/exp_body.inc"
#include "kernels/x86/attention_body.inc"
#include "kernels/x86/attention_tile.inc"
#include "kernels/x86/attention_row.inc"
// clang-format on

}  // namespace
}  // namespace sixfold
SF_END_TARGET

namespace sixfold {

int64_t Avx512AttentionScratch(const AttentionShape& shape) { return ScratchFloats(shape); }

void Avx512Attend(const AttentionPiece& piece, float* scratch) {
  if (IsRow(piece))
    AttendRow(piece, scratch);
  else
    AttendTile(piece, scratch);
}

void Avx512MergeNodes(const AttentionPiece& piece, const AttentionPartials& partials, float* scratch) {
  MergeNodesOfRow(piece, partials, scratch);
}

void Avx512MergePartials(float* left, const float* right, int64_t lanes, int v_dim) {
  MergeLanes(left, right, lanes, v_dim);
}

}  // namespace sixfold
