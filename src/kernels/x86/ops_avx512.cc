// gcc 12 warns about the undefined operands inside its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/math.h"
#include "kernels/ops_table.h"
#include "kernels/x86/attention.h"
#include "kernels/x86/target.h"
#include "kernels/x86/unroll.h"

SF_BEGIN_TARGET(SF_TARGET_AVX512)
namespace sixfold {
namespace {

// In this order: each part uses the ones before it.
// clang-format off
#include "kernels/x86/vector_avx512.inc"
#include "kernels/x86/exp_body.inc"
#include "kernels/x86/ops_body.inc"
// clang-format on

}  // namespace
}  // namespace sixfold
SF_END_TARGET

namespace sixfold {

const OpsTable& Avx512Ops() {
  static constexpr OpsTable kTable = {
      .sum_squares = SumSquares,
      .scale_by_weight = ScaleByWeight,
      .rotate = Rotate,
      .silu_mul = SiluMul,
      .clamped_swiglu = ClampedSwiGlu,
      .add = Add,
      .add_scaled = AddScaled,
      .clamp = Clamp,
      .round_bf16 = RoundRowToBf16,
      .to_bf16 = ToBf16,
      .max = Max,
      .sum_exp = SumExp,
      .exp_scaled = ExpScaled,
      .find = Find,
      .attention_scratch = Avx512AttentionScratch,
      .attend = Avx512Attend,
      .merge = Avx512MergeNodes,
      .merge_partials = Avx512MergePartials,
  };
  return kTable;
}

}  // namespace sixfold
