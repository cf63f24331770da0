#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"

namespace sixfold {

size_t MatMulScratchBytes(const MatMulTask& task) {
  constexpr int64_t kWidth = 32;  // columns in work at once
  int64_t levels = 2;             // the leaf in work, and the stack of the tree
  while (task.w->leaves.count() >> levels != 0) ++levels;
  const int64_t unpacked = kMatMulChunkBlocks * (kBlock + 3) * kWidth;
  const int64_t sums = (task.a->rows + 64) * kWidth * (levels + 2);
  return static_cast<size_t>(unpacked + sums) * sizeof(float);
}

}  // namespace sixfold
