// Non-owning look at a matrix as a file stores it. No arithmetic here: kernels/dequantize.h reads the values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace sixfold {

// F8 weights carry one scale a square block of the *original* tensor; a slice keeps its origin so that the block of an
// element never changes with the cut. weight[i][j] = code[i][j] * scale[(i + row_origin) / 128][(j + col_origin) / 128].
// MXFP4_SPLIT carries one E8M0 byte for each 32 columns of a row in the same way: data[i + row_origin][(j + col_origin) / 32].
struct BlockScales {
  const std::byte* data = nullptr;  // null: the matrix has no scales
  DType dtype = DType::kF32;        // F32 or BF16; U8 for MXFP4_SPLIT
  int64_t cols = 0;                 // scales in a row of the grid
  int64_t row_origin = 0;
  int64_t col_origin = 0;
  static constexpr int64_t kBlock = 128;
};

// [rows, cols], row-major. For block types a row starts at a block, cols and every column cut are whole blocks.
// `data` may have any alignment. Borrowed memory: the file mapping must outlive the view.
struct MatrixView {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;  // first byte of element [0][0]
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride_bytes = 0;
  int64_t col_stride_bytes = 0;     // from one element of a row to the next; 0: they are neighbours. Plain types without scales
  BlockScales scales;

  // Element [row][col] of a plain type.
  const std::byte* At(int64_t row, int64_t col) const {
    return Row(row) + col * (col_stride_bytes != 0 ? col_stride_bytes : InfoOf(dtype).block_bytes);
  }
  const std::byte* Row(int64_t row) const { return data + row * row_stride_bytes; }

  // Rows [begin, end).
  MatrixView Rows(int64_t begin, int64_t end) const {
    MatrixView v = *this;
    v.data += begin * row_stride_bytes;
    v.rows = end - begin;
    v.scales.row_origin += begin;
    return v;
  }

  // Columns [begin, end); both must be multiples of the type's block.
  MatrixView Cols(int64_t begin, int64_t end) const {
    MatrixView v = *this;
    v.data += col_stride_bytes != 0 ? begin * col_stride_bytes
                                    : begin / InfoOf(dtype).block_elements * InfoOf(dtype).block_bytes;
    v.cols = end - begin;
    v.scales.col_origin += begin;
    return v;
  }

  // Rows first, first + step, first + 2 step … of a matrix that is no slice of rows itself and has no scales of square blocks.
  MatrixView EveryRow(int64_t first, int64_t step) const {
    MatrixView v = *this;
    v.data += first * row_stride_bytes;
    v.rows = (rows - first + step - 1) / step;
    v.row_stride_bytes *= step;
    if (v.scales.data != nullptr) v.scales.data += first * scales.cols;
    v.scales.cols *= step;
    return v;
  }
};

}  // namespace sixfold
