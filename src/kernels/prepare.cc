#include "kernels/prepare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/packed_layout.h"
#include "kernels/scratch.h"

namespace sixfold {

namespace {

// Four lanes of the baseline instruction set; written as vectors because -O2 leaves such loops
// scalar.
using Floats = float __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
constexpr int kLanes = 4;

Floats Load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

void Store(float* p, Floats v) { std::memcpy(p, &v, sizeof(v)); }

Words Choose(Words mask, Words yes, Words no) { return (mask & yes) | (~mask & no); }

// To bf16, nearest even; denormals become zero, as the tile instruction would read them; NaN stays
// NaN.
Floats RoundToBF16(Floats x) {
  const auto bits = std::bit_cast<Words>(x);
  const Words magnitude = bits & 0x7fffffffu;
  Words rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
  rounded = Choose(std::bit_cast<Words>(magnitude > 0x7f800000u), (bits & 0xffff0000u) | 0x400000u,
                   rounded);
  rounded = Choose(std::bit_cast<Words>(magnitude < 0x00800000u), bits & 0x80000000u, rounded);
  return std::bit_cast<Floats>(rounded);
}

// x / scale to the nearest integer, ties to even, |x / scale| <= 128.
Floats RoundToCode(Floats x, float scale) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the sum has no bits below 1
  return (x / scale + kMagic) - kMagic;
}

// One group of 32 values as codes; returns the scale.
float QuantizeGroup(const float* x, float* codes) {
  float amax = 0;
  bool finite = true;
  for (int i = 0; i < kBlock; ++i) {
    const float magnitude = std::fabs(x[i]);
    finite = finite && magnitude < INFINITY;
    amax = magnitude > amax ? magnitude : amax;
  }
  const float scale = finite ? amax / 127.0f : std::bit_cast<float>(0x7fc00000u);
  if (!(scale > 0)) {
    std::memset(codes, 0, kBlock * sizeof(float));
    return scale;
  }
  for (int i = 0; i < kBlock; i += kLanes) Store(codes + i, RoundToCode(Load(x + i), scale));
  return scale;
}

// e + o of each of `count` blocks of 32 values. Two lanes are one block's e and o: two blocks a
// vector.
void SumBlocks(const float* a, int64_t count, float* sums) {
  const auto pair = [](const float* p, const float* q) { return Floats{p[0], p[1], q[0], q[1]}; };
  for (int64_t b = 0; b < count; b += 2) {
    const float* p = a + b * kBlock;
    const float* q = b + 1 < count ? p + kBlock : p;
    Floats sum = {};
    for (int i = 0; i < kBlock; i += 2) sum += pair(p + i, q + i);
    sums[b] = sum[0] + sum[1];
    if (b + 1 < count) sums[b + 1] = sum[2] + sum[3];
  }
}

void PrepareBlock(const float* x, ActDType act, float* values, float* scale) {
  switch (act) {
    case ActDType::kF32: std::memcpy(values, x, kBlock * sizeof(float)); break;
    case ActDType::kBF16:
      for (int i = 0; i < kBlock; i += kLanes) Store(values + i, RoundToBF16(Load(x + i)));
      break;
    case ActDType::kInt8: *scale = QuantizeGroup(x, values); break;
  }
}

void PrepareLeaf(const float* x, int64_t length, ActDType act, float* values, float* scales) {
  for (int64_t k = 0; k < length; k += kBlock) {
    float* scale = scales == nullptr ? nullptr : scales + k / kBlock;
    if (length - k >= kBlock) {
      PrepareBlock(x + k, act, values + k, scale);
    } else {
      float padded[kBlock] = {};
      std::memcpy(padded, x + k, static_cast<size_t>(length - k) * sizeof(float));
      PrepareBlock(padded, act, values + k, scale);
    }
  }
}

}  // namespace

int64_t ActivationsBytes(const Leaves& leaves, ActDType act, int64_t rows, Isa isa) {
  const int64_t blocks = LeafBlockCount(leaves), padded = blocks * kBlock;
  int64_t bytes = rows * (padded + blocks) * static_cast<int64_t>(sizeof(float));
  if (act == ActDType::kInt8) {
    bytes += rows * (padded + blocks * static_cast<int64_t>(sizeof(float)));
  }
  if (isa == Isa::kAmx && act != ActDType::kF32) {
    bytes += (rows + 15) / 16 * 16 * padded * static_cast<int64_t>(sizeof(uint16_t));
  }
  return bytes;
}

void ShapeActivations(const Leaves& leaves, ActDType act, int64_t rows, bool tiles,
                      Activations* out) {
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
  GrowTo(out->values, rows * out->k_padded);
  GrowTo(out->sums32, rows * blocks);
  if (act == ActDType::kInt8) {
    GrowTo(out->codes, rows * out->k_padded);
    GrowTo(out->scales, rows * blocks);
  }
  if (tiles && act != ActDType::kF32) {
    // Whole tiles of 16 rows are loaded; the rows past the last are never looked at again.
    GrowTo(out->bf16, (rows + 15) / 16 * 16 * out->k_padded);
  } else {
    out->bf16.clear();
  }
}

void PrepareRows(const PrepareArgs& args, int64_t begin, int64_t end, Activations* out) {
  const Leaves& leaves = *args.leaves;
  const int64_t blocks = out->k_padded / kBlock;
  for (int64_t r = begin; r < end; ++r) {
    const float* x =
        args.x +
        (args.row_index.empty() ? r : args.row_index[static_cast<size_t>(r)]) * args.stride;
    float* values = out->values.data() + r * out->k_padded;
    float* scales = out->act == ActDType::kInt8 ? out->scales.data() + r * blocks : nullptr;
    for (int v = 0; v < leaves.count(); ++v) {
      const int64_t block = out->leaf_block[v];
      PrepareLeaf(x + leaves.begin[v], leaves.begin[v + 1] - leaves.begin[v], out->act,
                  values + block * kBlock, scales == nullptr ? nullptr : scales + block);
    }
    float* sums = out->sums32.data() + r * blocks;
    SumBlocks(values, blocks, sums);
    if (out->act == ActDType::kInt8) {
      int8_t* codes = out->codes.data() + r * out->k_padded;
      for (int64_t k = 0; k < out->k_padded; ++k)
        codes[k] = static_cast<int8_t>(values[k / 8 * 8 + kCodeOrder[k % 8]]);
    }
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
