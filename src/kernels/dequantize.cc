#include "kernels/dequantize.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/stored_block.h"

namespace sixfold {

namespace {

template <typename T>
T LoadAt(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

// The order of operations is the gguf package's: scale * code, then the minimum; d * scale of a
// group first.
void DequantizeStoredBlock(DType dtype, const StoredBlock& b, float* out) {
  const bool mx = dtype == DType::kMXFP4 || dtype == DType::kMXFP4Split;
  const float d = mx ? E8M0ToF32(static_cast<uint8_t>(b.d)) : F16ToF32(b.d);
  const float m = F16ToF32(b.m);
  for (int i = 0; i < b.elements; ++i) {
    const int code = b.codes[i];
    const int g = i / b.group;
    switch (dtype) {
      case DType::kQ4_0: out[i] = d * static_cast<float>(code - 8); break;
      case DType::kQ5_0: out[i] = d * static_cast<float>(code - 16); break;
      case DType::kQ8_0: out[i] = d * static_cast<float>(static_cast<int8_t>(code)); break;
      case DType::kMXFP4:
      case DType::kMXFP4Split: out[i] = d * kE2M1Values[code]; break;
      case DType::kQ4_1:
      case DType::kQ5_1: out[i] = d * static_cast<float>(code) + m; break;
      case DType::kQ4_K:
      case DType::kQ5_K: {
        const float scale = d * static_cast<float>(b.scales[g]);
        const float minimum = m * static_cast<float>(b.minima[g]);
        out[i] = scale * static_cast<float>(code) - minimum;
        break;
      }
      default: {  // Q6_K
        const float scale = d * static_cast<float>(b.scales[g]);
        out[i] = scale * static_cast<float>(code - 32);
        break;
      }
    }
  }
}

void DequantizeF8Row(const MatrixView& view, int64_t row, float* out) {
  const std::byte* codes = view.Row(row);
  for (int64_t j = 0; j < view.cols; ++j) {
    const float value = F8E4M3ToF32(static_cast<uint8_t>(codes[j]));
    out[j] = view.scales.data == nullptr ? value : value * BlockScaleAt(view.scales, row, j);
  }
}

}  // namespace

float F16ToF32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = bits >> 10 & 31;
  uint32_t mantissa = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // A subnormal half is a normal float: move its leading one to the implicit place.
  const int shift = std::countl_zero(mantissa) - 21;
  mantissa = mantissa << shift & 0x3ff;
  return std::bit_cast<float>(sign | static_cast<uint32_t>(113 - shift) << 23 | mantissa << 13);
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t F32ToBF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float F8E4M3ToF32(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  const uint32_t exponent = code >> 3 & 15;
  const uint32_t mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 120) << 23 | mantissa << 20);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

float E8M0ToF32(uint8_t code) { return std::bit_cast<float>(code == 0 ? 0x00400000u : uint32_t{code} << 23); }

uint8_t MxScaleAt(const BlockScales& scales, int64_t row, int64_t col) {
  SF_CHECK(scales.dtype == DType::kU8);
  return static_cast<uint8_t>(scales.data[(row + scales.row_origin) * scales.cols + (col + scales.col_origin) / 32]);
}

float BlockScaleAt(const BlockScales& scales, int64_t row, int64_t col) {
  const int64_t index = (row + scales.row_origin) / BlockScales::kBlock * scales.cols +
                        (col + scales.col_origin) / BlockScales::kBlock;
  if (scales.dtype == DType::kBF16) return BF16ToF32(LoadAt<uint16_t>(scales.data + index * 2));
  SF_CHECK(scales.dtype == DType::kF32);
  return LoadAt<float>(scales.data + index * 4);
}

void DequantizeRow(const MatrixView& view, int64_t row, float* out) {
  SF_CHECK(CanDequantize(view.dtype));
  SF_CHECK_GE(row, 0);
  SF_CHECK_LT(row, view.rows);
  const std::byte* data = view.Row(row);
  switch (view.dtype) {
    case DType::kF32:
      if (view.col_stride_bytes == 0) {
        std::memcpy(out, data, static_cast<size_t>(view.cols) * 4);
      } else {
        for (int64_t j = 0; j < view.cols; ++j) out[j] = LoadAt<float>(view.At(row, j));
      }
      return;
    case DType::kF16:
      for (int64_t j = 0; j < view.cols; ++j) out[j] = F16ToF32(LoadAt<uint16_t>(view.At(row, j)));
      return;
    case DType::kBF16:
      for (int64_t j = 0; j < view.cols; ++j) out[j] = BF16ToF32(LoadAt<uint16_t>(view.At(row, j)));
      return;
    case DType::kF8E4M3: DequantizeF8Row(view, row, out); return;
    default: {
      const DTypeInfo& info = InfoOf(view.dtype);
      StoredBlock block;
      for (int64_t j = 0; j < view.cols; j += info.block_elements, data += info.block_bytes) {
        ReadStoredBlock(view.dtype, reinterpret_cast<const uint8_t*>(data), &block);
        if (view.dtype == DType::kMXFP4Split) block.d = MxScaleAt(view.scales, row, j);
        DequantizeStoredBlock(view.dtype, block, out + j);
      }
      return;
    }
  }
}

}  // namespace sixfold
