// Values of a stored matrix as fp32, bit for bit what the reference implementation of each format
// gives. Formats: ggml's block layouts as read by the `gguf` Python package; F8 E4M3 with 128x128
// block scales (weight = value * scale in fp32); MXFP4 after the OCP Microscaling Formats (MX) specification 1.0.
#pragma once

#include <cstdint>

#include "tensor/matrix_view.h"

namespace sixfold {

float F16ToF32(uint16_t bits);
float BF16ToF32(uint16_t bits);
uint16_t F32ToBF16(float value);  // round to nearest even; NaN stays NaN
float F8E4M3ToF32(uint8_t code);  // 0x7f and 0xff are NaN, no infinities

// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, with bit 3 set, their negatives. Code 8, a negative zero, is +0 here as in ggml; no sum
// of products can tell.
inline constexpr float kE2M1Values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
// 2^(code - 127). Code 0 is 2^-127, a denormal, and counts as zero on threads that flush them; 255, the format's NaN, is
// infinite as in transformers' reader, so that weights are infinite or NaN (ggml reads 2^128 times the code instead).
float E8M0ToF32(uint8_t code);

// The scale of element [row][col] of the view that holds `scales`; scales.data must not be null.
float BlockScaleAt(const BlockScales& scales, int64_t row, int64_t col);

// MXFP4_SPLIT only: the E8M0 code of element [row][col].
uint8_t MxScaleAt(const BlockScales& scales, int64_t row, int64_t col);

// Writes columns [0, view.cols) of `row` to out. CanDequantize(view.dtype) must hold. Scalar code,
// any ISA.
void DequantizeRow(const MatrixView& view, int64_t row, float* out);

}  // namespace sixfold
