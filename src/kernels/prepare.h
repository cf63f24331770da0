// Rows of activations as MatMul reads them; the arithmetic of MatMul::Prepare for a range of rows.
#pragma once

#include "kernels/matmul.h"

namespace sixfold {

struct PrepareArgs {
  const float* x = nullptr;
  int64_t stride = 0;
  const Leaves* leaves = nullptr;
  std::span<const int32_t> row_index;
};

// Sets shapes and grows the memory of `out`. `tiles`: also keep rows as bf16.
void ShapeActivations(const Leaves& leaves, ActDType act, int64_t rows, bool tiles,
                      Activations* out);
// Fills rows [begin, end). Thread rule: disjoint ranges may be filled at once.
void PrepareRows(const PrepareArgs& args, int64_t begin, int64_t end, Activations* out);

}  // namespace sixfold
