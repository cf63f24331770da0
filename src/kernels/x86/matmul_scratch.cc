#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"

namespace sixfold {

size_t MatMulScratchBytes(const MatMulTask& task) {
  return static_cast<size_t>(MatMulThreadBytes(task.a->rows, task.w->leaves.count()));
}

int64_t MatMulThreadBytes(int64_t rows, int leaves) {
  constexpr int64_t kWidth = 32;  // columns in work at once
  int64_t levels = 2;             // the leaf in work, and the stack of the tree
  while (leaves >> levels != 0) ++levels;
  const int64_t unpacked = kMatMulChunkBlocks * (kBlock + 3) * kWidth;
  const int64_t sums = (rows + 64) * kWidth * (levels + 2);
  return (unpacked + sums) * static_cast<int64_t>(sizeof(float));
}

}  // namespace sixfold
