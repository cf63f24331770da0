// Values of stored tensors as fp32, for `dump`, tests and small tensors that are used expanded
// (norms, biases).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "weights/weight_store.h"

namespace sixfold {

// Half-open ranges of a tensor seen as a matrix: cols is the innermost dimension, rows the product
// of all others (1 for [n] and for a scalar). The end -1 means up to the last.
struct ReadRange {
  int64_t row_begin = 0;
  int64_t row_end = -1;
  int64_t col_begin = 0;
  int64_t col_end = -1;
};

// Rows and columns of that matrix.
int64_t TensorRows(const TensorInfo& tensor);
int64_t TensorCols(const TensorInfo& tensor);

// Writes rows x cols of the range to `out`, row-major. Only those bytes (whole blocks of block
// types) are read. Takes what CanDequantize() names, with F8 scales applied, and every plain float,
// integer and bool type (rounded to the nearest fp32). Other types are kInvalidFile, ranges outside
// the tensor kInvalidArgument.
Status ReadRows(const WeightStore& store, const TensorInfo& tensor, const ReadRange& range,
                float* out);

// The whole tensor into a vector of exactly its elements; for small tensors such as norms.
Result<std::vector<float>> ReadAll(const WeightStore& store, const TensorInfo& tensor);

}  // namespace sixfold
