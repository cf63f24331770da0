#include "kernels/prepare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/packed_layout.h"

namespace sixfold {

namespace {

template <typename T>
void Grow(std::vector<T>& v, int64_t size) {
  if (static_cast<int64_t>(v.size()) < size) v.resize(static_cast<size_t>(size));
}

// Nearest even; denormals become zero, as the tile instruction would read them; NaN stays NaN.
float RoundToBF16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  rounded = magnitude > 0x7f800000u ? (bits & 0xffff0000u) | 0x400000u : rounded;
  rounded = magnitude < 0x00800000u ? bits & 0x80000000u : rounded;
  return std::bit_cast<float>(rounded);
}

// x / scale to the nearest integer, ties to even, |x / scale| <= 128.
float RoundToCode(float x, float scale) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the sum has no bits below 1
  return (x / scale + kMagic) - kMagic;
}

// One group of up to 32 values as codes; returns the scale.
float QuantizeGroup(const float* x, int64_t count, float* codes) {
  float amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(x[i]);
    finite = finite && magnitude < INFINITY;
    amax = magnitude > amax ? magnitude : amax;
  }
  const float scale = finite ? amax / 127.0f : std::bit_cast<float>(0x7fc00000u);
  const bool codable = finite && scale > 0;
  for (int64_t i = 0; i < count; ++i) codes[i] = codable ? RoundToCode(x[i], scale) : 0.0f;
  return scale;
}

// e + o of 32 values.
float SumOfBlock(const float* a) {
  float e = 0;
  float o = 0;
  for (int i = 0; i < kBlock; i += 2) {
    e += a[i];
    o += a[i + 1];
  }
  return e + o;
}

void PrepareLeaf(const float* x, int64_t length, ActDType act, float* values, float* scales) {
  switch (act) {
    case ActDType::kF32:
      std::memcpy(values, x, static_cast<size_t>(length) * sizeof(float));
      break;
    case ActDType::kBF16:
      for (int64_t k = 0; k < length; ++k) values[k] = RoundToBF16(x[k]);
      break;
    case ActDType::kInt8:
      for (int64_t k = 0; k < length; k += kBlock) {
        scales[k / kBlock] = QuantizeGroup(x + k, std::min<int64_t>(kBlock, length - k), values + k);
      }
      break;
  }
  for (int64_t k = length; k % kBlock != 0; ++k) values[k] = 0;
}

}  // namespace

void ShapeActivations(const Leaves& leaves, ActDType act, int64_t rows, bool tiles, Activations* out) {
  out->act = act;
  out->rows = rows;
  out->leaf_block.resize(leaves.begin.size());
  int64_t blocks = 0;
  for (int v = 0; v < leaves.count(); ++v) {
    out->leaf_block[v] = blocks;
    blocks += (leaves.begin[v + 1] - leaves.begin[v] + kBlock - 1) / kBlock;
  }
  out->leaf_block.back() = blocks;
  out->k_padded = blocks * kBlock;
  Grow(out->values, rows * out->k_padded);
  Grow(out->sums32, rows * blocks);
  if (act == ActDType::kInt8) Grow(out->scales, rows * blocks);
  if (tiles && act != ActDType::kF32) {
    // Whole tiles of 16 rows are loaded; the rows past the last are never looked at again.
    Grow(out->bf16, (rows + 15) / 16 * 16 * out->k_padded);
  } else {
    out->bf16.clear();
  }
}

void PrepareRows(const PrepareArgs& args, int64_t begin, int64_t end, Activations* out) {
  const Leaves& leaves = *args.leaves;
  const int64_t blocks = out->k_padded / kBlock;
  for (int64_t r = begin; r < end; ++r) {
    const float* x = args.x + (args.row_index.empty() ? r : args.row_index[static_cast<size_t>(r)]) * args.stride;
    float* values = out->values.data() + r * out->k_padded;
    float* scales = out->act == ActDType::kInt8 ? out->scales.data() + r * blocks : nullptr;
    for (int v = 0; v < leaves.count(); ++v) {
      const int64_t block = out->leaf_block[v];
      PrepareLeaf(x + leaves.begin[v], leaves.begin[v + 1] - leaves.begin[v], out->act, values + block * kBlock,
                  scales == nullptr ? nullptr : scales + block);
    }
    float* sums = out->sums32.data() + r * blocks;
    for (int64_t b = 0; b < blocks; ++b) sums[b] = SumOfBlock(values + b * kBlock);
    if (out->bf16.empty()) continue;
    // Row r is line r % 16 of the tiles of its sixteen rows.
    uint16_t* tile_row = out->bf16.data() + (r / 16 * blocks * 16 + r % 16) * kBlock;
    for (int64_t b = 0; b < blocks; ++b, tile_row += 16 * kBlock) {
      for (int k = 0; k < kBlock; ++k) {
        tile_row[k] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[b * kBlock + k]) >> 16);
      }
    }
  }
}

}  // namespace sixfold
