// gcc 12 warns about the undefined operands inside its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"
#include "kernels/x86/target.h"

SF_BEGIN_TARGET(SF_TARGET_AVX512)
namespace sixfold {
namespace {

#include "kernels/x86/weights_avx512.inc"

constexpr int kVectorRows = 8;      // rows that share one pass over packed weights
constexpr int kMaxVectorRows = 24;  // more rows unpack to memory
constexpr int kMinTileRows = 5;     // 25 rows and more in tiles of at most 7 never leave fewer
constexpr int kTileRows =
    7;  // 7 x 2 x (e, o) accumulators, two weights, one activation: 31 of 32 registers
constexpr int kTilePanels = 2;
constexpr int kChunkBlocks = kMatMulChunkBlocks;

#include "kernels/x86/matmul_body.inc"

}  // namespace

void MatMulPanelsAvx512(const PanelRange& range) {
  const bool integers = range.task->a->act == ActDType::kInt8 && VnniReads(range.task->w->format);
  integers&& range.vnni ? MatMulPanelsVnni(range) : RunPanelsOfAnyFormat(range);
}

}  // namespace sixfold
SF_END_TARGET
