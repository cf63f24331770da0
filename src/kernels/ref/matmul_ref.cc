#include "kernels/ref/matmul_ref.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/packed_layout.h"

namespace sixfold {

namespace {

// e + o over `count` k from `k0`, column j.
float PairSum(const float* a, const PanelBlock& w, int k0, int count, int j) {
  float e = 0;
  float o = 0;
  for (int k = k0; k < k0 + count; k += 2) {
    e = std::fma(a[k], w.values[k][j], e);
    o = std::fma(a[k + 1], w.values[k + 1][j], o);
  }
  return e + o;
}

// One block of 32 k added to c.
float AddBlock(const PackedLayout& layout, const Activations& a, int64_t row, int64_t block,
               const PanelBlock& w, int j, float c) {
  const float* x = a.values.data() + row * a.k_padded + block * kBlock;
  const int64_t group = row * (a.k_padded / kBlock) + block;
  const bool int8 = a.act == ActDType::kInt8;
  const float a_scale = int8 ? a.scales[static_cast<size_t>(group)] : 1.0f;
  if (layout.dense()) {
    const float p = PairSum(x, w, 0, kBlock, j);
    return int8 ? std::fma(p, a_scale, c) : c + p;
  }
  for (int g = 0; g < kBlock / layout.group; ++g) {
    const float p = PairSum(x, w, g * layout.group, layout.group, j);
    c = std::fma(p, int8 ? w.scale[g][j] * a_scale : w.scale[g][j], c);
  }
  if (layout.minima) {
    c = std::fma(a.sums32[static_cast<size_t>(group)], int8 ? w.minimum[j] * a_scale : w.minimum[j],
                 c);
  }
  return c;
}

// node(level, i) over leaf sums, by recursion straight from the definition: an absent right child
// copies the left.
float Node(const float* leaf, int count, int level, int i) {
  if (level == 0) return leaf[i];
  const float left = Node(leaf, count, level - 1, 2 * i);
  const int right_begin = (2 * i + 1) << (level - 1);
  return right_begin < count ? left + Node(leaf, count, level - 1, 2 * i + 1) : left;
}

}  // namespace

void RefMatMulPanel(const Activations& a, int64_t row_begin, int64_t row_end, const PackedMatrix& w,
                    int64_t panel, float* out, int64_t out_stride) {
  const PackedLayout layout = LayoutOf(w.format);
  const std::byte* stream = w.stream.data() + panel * w.panel_bytes;
  const int leaves = w.leaves.count();
  const int columns =
      static_cast<int>(std::min<int64_t>(kPanelColumns, w.n - panel * kPanelColumns));
  const int64_t rows = row_end - row_begin;
  std::vector<float> sums(
      static_cast<size_t>(rows * kPanelColumns * leaves));  // [rows][16][leaves]
  PanelBlock block;
  for (int v = 0; v < leaves; ++v) {
    for (int64_t b = a.leaf_block[v]; b < a.leaf_block[v + 1]; ++b) {
      ReadPanelBlock(w.format, stream, b, &block);
      for (int64_t i = 0; i < rows * kPanelColumns; ++i) {
        float& c = sums[static_cast<size_t>(i * leaves + v)];
        c = AddBlock(layout, a, row_begin + i / kPanelColumns, b, block,
                     static_cast<int>(i % kPanelColumns), c);
      }
    }
  }
  int levels = 0;
  while ((1 << levels) < leaves) ++levels;
  for (int64_t r = 0; r < rows; ++r) {
    for (int j = 0; j < columns; ++j) {
      out[r * out_stride + panel * kPanelColumns + j] =
          Node(sums.data() + (r * kPanelColumns + j) * leaves, leaves, levels, 0);
    }
  }
}

void RefMatMulRow(const Activations& a, int64_t row, const PackedMatrix& w, float* out) {
  SF_CHECK_LT(row, a.rows);
  for (int64_t panel = 0; panel * kPanelColumns < w.n; ++panel) {
    RefMatMulPanel(a, row, row + 1, w, panel, out, w.n);
  }
}

}  // namespace sixfold
