// Values of a stored matrix as fp32, bit for bit what the reference implementation of each format
// gives. Formats: ggml's block layouts as read by the `gguf` Python package; F8 E4M3 with 128x128
// block scales (weight = value * scale in fp32).
#pragma once

#include <cstdint>

#include "tensor/matrix_view.h"

namespace sixfold {

float F16ToF32(uint16_t bits);
float BF16ToF32(uint16_t bits);
uint16_t F32ToBF16(float value);  // round to nearest even; NaN stays NaN
float F8E4M3ToF32(uint8_t code);  // 0x7f and 0xff are NaN, no infinities

// The scale of element [row][col] of the view that holds `scales`; scales.data must not be null.
float BlockScaleAt(const BlockScales& scales, int64_t row, int64_t col);

// Writes columns [0, view.cols) of `row` to out. CanDequantize(view.dtype) must hold. Scalar code,
// any ISA.
void DequantizeRow(const MatrixView& view, int64_t row, float* out);

}  // namespace sixfold
