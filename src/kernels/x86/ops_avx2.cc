#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/math.h"
#include "kernels/ops_table.h"
#include "kernels/x86/attention.h"
#include "kernels/x86/target.h"
#include "kernels/x86/unroll.h"

SF_BEGIN_TARGET(SF_TARGET_AVX2)
namespace sixfold {
namespace {

// In this order: each part uses the ones before it.
// clang-format off
#include "kernels/x86/vector_avx2.inc"
#include "kernels/x86/exp_body.inc"
#include "kernels/x86/ops_body.inc"
// clang-format on

}  // namespace
}  // namespace sixfold
SF_END_TARGET

namespace sixfold {

const OpsTable& Avx2Ops() {
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
      .attention_scratch = Avx2AttentionScratch,
      .attend = Avx2Attend,
      .merge = Avx2MergeNodes,
      .merge_partials = Avx2MergePartials,
  };
  return kTable;
}

}  // namespace sixfold
