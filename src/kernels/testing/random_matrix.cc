#include "kernels/testing/random_matrix.h"

#include <cstring>

#include "kernels/dequantize.h"

namespace sixfold::testing {

namespace {

constexpr int kNoScale = -1;

// Byte offsets of the f16 scales in a block.
struct ScaleOffsets {
  int d = kNoScale;
  int m = kNoScale;
};

ScaleOffsets OffsetsOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0: return {0, kNoScale};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return {0, 2};
    case DType::kQ6_K: return {208, kNoScale};
    default: return {};
  }
}

// 2^-9 to 2^-2; seldom nothing (a denormal).
std::byte RandomPowerOfTwo(Random& random) {
  const uint64_t bits = random.Bits() >> 11;
  return static_cast<std::byte>(bits % 32 == 0 ? 0 : 118 + bits % 8);
}

uint16_t RandomHalfScale(Random& random) {
  const uint64_t bits = random.Bits();
  const auto sign = static_cast<uint16_t>(bits >> 32 & 0x8000);
  const auto mantissa = static_cast<uint16_t>(bits & 0x3ff);
  switch (bits >> 56 & 31) {
    case 0: return sign;                                               // zero
    case 1: return sign | mantissa;                                    // subnormal
    default: return static_cast<uint16_t>(sign | 8 << 10 | mantissa);  // 2^-7 to 2^-6
  }
}

void FillPlain(DType dtype, Random& random, std::byte* out) {
  const float value = random.Normal() * 0.05f;
  if (dtype == DType::kF32) {
    std::memcpy(out, &value, 4);
  } else if (dtype == DType::kBF16) {
    const uint16_t bits = F32ToBF16(value);
    std::memcpy(out, &bits, 2);
  } else if (dtype == DType::kF16) {
    const auto bits = static_cast<uint16_t>((random.Bits() & 0x83ff) | (random.Bits() % 12) << 10);
    std::memcpy(out, &bits, 2);
  } else {
    const auto code = static_cast<uint8_t>(random.Bits());
    *out = static_cast<std::byte>((code & 0x7f) == 0x7f ? 0x7e : code);
  }
}

}  // namespace

uint64_t Random::Bits() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

float Random::Uniform(float low, float high) {
  return low + (high - low) * static_cast<float>(Bits() >> 40) * 0x1p-24f;
}

float Random::Normal() {
  const uint64_t bits = Bits();
  float sum = 0;
  for (int i = 0; i < 4; ++i)
    sum += static_cast<float>(bits >> (16 * i) & 0xffff) * 0x1p-16f - 0.5f;
  return sum * 1.7320508f;  // four uniforms have variance 4 / 12
}

RandomMatrix::RandomMatrix(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  const DTypeInfo& info = InfoOf(dtype);
  const int64_t row_bytes = cols / info.block_elements * info.block_bytes;
  bytes.resize(static_cast<size_t>(rows * row_bytes));
  if (IsBlockType(dtype)) {
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(random.Bits() >> 20);
    const ScaleOffsets offsets = OffsetsOf(dtype);
    for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(info.block_bytes)) {
      for (int offset : {offsets.d, offsets.m}) {
        if (offset == kNoScale) continue;
        const uint16_t scale = RandomHalfScale(random);
        std::memcpy(bytes.data() + block + offset, &scale, 2);
      }
      if (dtype == DType::kMXFP4) bytes[block] = RandomPowerOfTwo(random);
    }
  } else {
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(info.block_bytes)) {
      FillPlain(dtype, random, bytes.data() + i);
    }
  }
  view = {.dtype = dtype,
          .data = bytes.data(),
          .rows = rows,
          .cols = cols,
          .row_stride_bytes = row_bytes};
  if (dtype == DType::kMXFP4Split) {
    view.scales = {.dtype = DType::kU8, .cols = cols / 32};
    scale_bytes.resize(static_cast<size_t>(rows * view.scales.cols));
    for (std::byte& scale : scale_bytes) scale = RandomPowerOfTwo(random);
    view.scales.data = scale_bytes.data();
  }
  if (dtype == DType::kF8E4M3) {
    constexpr int64_t kB = BlockScales::kBlock;
    view.scales.cols = (cols + kB - 1) / kB;
    view.scales.dtype = seed % 2 == 0 ? DType::kF32 : DType::kBF16;
    const int width = InfoOf(view.scales.dtype).block_bytes;
    const int64_t count = (rows + kB - 1) / kB * view.scales.cols;
    scale_bytes.resize(static_cast<size_t>(count * width));
    for (int64_t i = 0; i < count; ++i) {
      const float scale = random.Uniform(0.0005f, 0.002f);
      const uint16_t half = F32ToBF16(scale);
      std::memcpy(scale_bytes.data() + i * width,
                  width == 4 ? static_cast<const void*>(&scale) : &half,
                  static_cast<size_t>(width));
    }
    view.scales.data = scale_bytes.data();
  }
}

}  // namespace sixfold::testing
