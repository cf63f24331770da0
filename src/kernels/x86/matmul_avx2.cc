#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"
#include "kernels/x86/target.h"

SF_BEGIN_TARGET(SF_TARGET_AVX2)
namespace sixfold {
namespace {

#include "kernels/x86/weights_avx2.inc"

constexpr int kVectorRows = 2;
constexpr int kMaxVectorRows = 2;
constexpr int kMinTileRows = 2;
constexpr int kTileRows =
    3;  // 3 x (e, o) x two registers, a weight in two, one activation: 15 of 16
constexpr int kTilePanels = 1;
constexpr int kChunkBlocks = kMatMulChunkBlocks;

#include "kernels/x86/matmul_body.inc"

}  // namespace

void MatMulPanelsAvx2(const PanelRange& range) { RunPanelsOfAnyFormat(range); }

}  // namespace sixfold
SF_END_TARGET
