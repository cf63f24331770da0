// Products with the tile unit: TDPBF16PS is 32 k of numerics.h for 16 rows and 16 columns in one
// instruction. Dense bf16 weights are tiles as they lie; a leaf is one chain of instructions on the
// same sums. Block-quantised and F8 codes are small numbers, exact in bf16: a chunk of blocks is
// unpacked to tiles, each group is multiplied from zero, and AVX-512 scales and adds the products.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12 warns inside its own intrinsics
#endif
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"
#include "kernels/x86/target.h"

SF_BEGIN_TARGET(SF_TARGET_AMX)
namespace sixfold {
namespace {

#include "kernels/x86/weights_avx512.inc"

constexpr int kTileRows = 16;
constexpr int kTileBytes = 1024;
constexpr int kMinDenseRows = 2;    // below, AVX-512 reads weights as fast as tiles would
constexpr int kMinGroupedRows = 6;  // below, AVX-512 beats unpacking to tiles

// The instruction reads 64 bytes; laid out by the architecture.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3: sums of two row tiles by two panels; 4, 5: activations; 6, 7: weights. `k`: 32 or
// 16 in one product.
void ConfigureTiles(int k) {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = static_cast<uint8_t>(t < 6 ? kTileRows : k / 2);
    config.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? k * 2 : 64);
  }
  // gcc 12 declares an eight-byte operand and would drop the other stores as dead.
  __asm__ volatile("" : "+m"(config) : : "memory");
  _tile_loadconfig(&config);
}

template <int MT, int P>
SF_INLINE void ZeroSums() {
  _tile_zero(0);
  if constexpr (P == 2) _tile_zero(1);
  if constexpr (MT == 2) _tile_zero(2);
  if constexpr (MT == 2 && P == 2) _tile_zero(3);
}

template <int MT, int P>
SF_INLINE void MultiplyTiles(const uint16_t* a0, const uint16_t* a1, const uint8_t* b0,
                             const uint8_t* b1) {
  _tile_loadd(6, b0, 64);
  _tile_loadd(4, a0, 64);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (P == 2) {
    _tile_loadd(7, b1, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if constexpr (MT == 2) {
    _tile_loadd(5, a1, 64);
    _tile_dpbf16ps(2, 5, 6);
  }
  if constexpr (MT == 2 && P == 2) _tile_dpbf16ps(3, 5, 7);
}

// out: [MT][P][16 rows][16]
template <int MT, int P>
SF_INLINE void StoreSums(float* out) {
  _tile_stored(0, out, 64);
  if constexpr (P == 2) _tile_stored(1, out + 256, 64);
  if constexpr (MT == 2) _tile_stored(2, out + P * 256, 64);
  if constexpr (MT == 2 && P == 2) _tile_stored(3, out + 3 * 256, 64);
  __asm__ volatile("" : : : "memory");
}

// One block of one panel as the tile unit reads it.
struct alignas(64) UnpackedBlock {
  uint8_t tile[kTileBytes];
  float scale[2][kPanelColumns];
  float minimum[kPanelColumns];
};

constexpr uint16_t CodeAsBF16(int code) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(code)) >> 16);
}

// bf16 of four-bit codes; twice, since the look-up reads five index bits.
template <int kOffset>
struct FourBitTable {
  constexpr FourBitTable() {
    for (int i = 0; i < 32; ++i) words[i] = CodeAsBF16(i % 16 - kOffset);
  }
  alignas(64) uint16_t words[32] = {};
};
template <int kOffset>
constexpr FourBitTable<kOffset> kFourBitTable;

constexpr FourBitTable<0> E2M1Table() {
  constexpr float kValues[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  FourBitTable<0> table;
  for (int i = 0; i < 32; ++i) table.words[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(kValues[i % 16]) >> 16);
  return table;
}
constexpr FourBitTable<0> kE2M1Table = E2M1Table();

// Pair I of a quad as bf16 pairs.
template <PackedFormat F, int I>
SF_INLINE __m512i PairsAsBF16(const Unpack<F>& weights) {
  constexpr bool kFourBits = F == PackedFormat::kQ4_0 || F == PackedFormat::kQ4_1 ||
                             F == PackedFormat::kQ4_K || F == PackedFormat::kMXFP4;
  if constexpr (F == PackedFormat::kF8) {
    return weights.template Pairs<I>();
  } else if constexpr (kFourBits) {
    // One shift and one look-up give both halves.
    const uint16_t* table = F == PackedFormat::kMXFP4 ? kE2M1Table.words : kFourBitTable<LayoutOf(F).code_offset>.words;
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(Dwords(weights.row), I * 4), _mm512_load_si512(table));
  } else {
    // Codes are exact in bf16, so the upper halves of their fp32 forms are all there is.
    V e, o;
    weights.template Pair<I>(&e, &o);
    return Select(_mm512_set1_epi32(static_cast<int>(0xffff0000u)), _mm512_castps_si512(o),
                  _mm512_srli_epi32(_mm512_castps_si512(e), 16));
  }
}

template <PackedFormat F, int I>
SF_INLINE void UnpackPairs(const Unpack<F>& weights, uint8_t* tile) {
  _mm512_store_si512(tile + I * 64, PairsAsBF16<F, I>(weights));
  if constexpr (I + 1 < 4) UnpackPairs<F, I + 1>(weights, tile);
}

template <PackedFormat F>
void UnpackBlock(const uint8_t* panel, int64_t block, UnpackedBlock* out) {
  const BlockAt at = FindBlock<F>(panel, block);
  for (int d = 0; d < 4; ++d) UnpackPairs<F, 0>(Unpack<F>(at.codes, d), out->tile + d * 256);
  Store(out->scale[0], ScaleOf<F>(at, 0));
  if constexpr (LayoutOf(F).group == 16) Store(out->scale[1], ScaleOf<F>(at, 1));
  if constexpr (LayoutOf(F).minima) Store(out->minimum, MinimumOf<F>(at));
}

// Rows [row0, row0 + rows) and P panels from column0, over some blocks.
struct TileJob {
  const MatMulTask* task;
  int64_t row0;
  int rows;  // real rows, at most 16 * MT
  int64_t column0;
  int64_t block_begin, block_end;
  int first_leaf;  // the leaf that holds block_begin
  float*
      sums;  // [MT][P][16][16] of the leaf in work, then the stack of the tree: [level] of the same
  float* products;  // [MT][P][16][16]: what the tiles stored
};

// Ends leaf v: its sums go into the tree, or to the output.
template <int MT, int P>
void EndLeaf(const TileJob& job, int v) {
  constexpr int64_t kSize = MT * P * 256;
  const MatMulTask& task = *job.task;
  float* stack = job.sums + kSize;
  for (int tile = 0; tile < MT * P; ++tile) {
    const int row_base = tile / P * kTileRows;
    const int64_t column = job.column0 + tile % P * kPanelColumns;
    const int columns = static_cast<int>(std::min<int64_t>(kPanelColumns, task.w->n - column));
    for (int r = 0; r < std::min(kTileRows, job.rows - row_base); ++r) {
      const int64_t at = tile * 256 + r * 16;
      int level;
      const V node =
          MergeLeaf(Load(job.sums + at), stack + at, kSize, v, task.w->leaves.count(), &level);
      if (level < 0) {
        StoreColumns(task.out + (job.row0 + row_base + r) * task.out_stride + column, node,
                     columns);
      } else {
        Store(stack + level * kSize + at, node);
      }
    }
  }
}

SF_INLINE const uint16_t* ActivationTile(const Activations& a, int64_t row, int64_t block) {
  return a.bf16.data() + (row / kTileRows * (a.k_padded / kBlock) + block) * (kTileRows * kBlock);
}

// Dense bf16: all blocks.
template <int MT, int P>
void DenseTiles(const TileJob& job) {
  const MatMulTask& task = *job.task;
  const Activations& a = *task.a;
  const auto* b0 = task.w->stream.as<uint8_t>() + job.column0 / kPanelColumns * task.w->panel_bytes;
  const uint8_t* b1 = b0 + (P == 2 ? task.w->panel_bytes : 0);
  const uint16_t* a0 = ActivationTile(a, job.row0, 0);
  const uint16_t* a1 = MT == 2 ? ActivationTile(a, job.row0 + kTileRows, 0) : a0;
  for (int v = 0; v < task.w->leaves.count(); ++v) {
    ZeroSums<MT, P>();
    for (int64_t b = a.leaf_block[v]; b < a.leaf_block[v + 1]; ++b) {
      const int64_t at = b * kTileRows * kBlock;
      MultiplyTiles<MT, P>(a0 + at, a1 + at, b0 + b * kTileBytes, b1 + b * kTileBytes);
    }
    StoreSums<MT, P>(job.sums);
    EndLeaf<MT, P>(job, v);
  }
}

// Adds the products of group g of one block, scaled.
template <int MT, int P>
SF_INLINE void ScaleProducts(const TileJob& job, const UnpackedBlock* weights, int g, bool minima,
                             int64_t block) {
  const Activations& a = *job.task->a;
  const int64_t blocks = a.k_padded / kBlock;
  const bool int8 = a.act == ActDType::kInt8;
  for (int p = 0; p < P; ++p) {
    const V scale = Load(weights[p].scale[g]);
    const V minimum = minima ? Load(weights[p].minimum) : Zero();
    for (int r = 0; r < job.rows; ++r) {
      const int64_t group = (job.row0 + r) * blocks + block;
      const int at = (r / kTileRows * P + p) * 256 + r % kTileRows * 16;
      const V a_scale = int8 ? Broadcast(a.scales.data() + group) : Zero();
      V c = Fma(Load(job.products + at), int8 ? Mul(scale, a_scale) : scale, Load(job.sums + at));
      if (minima)
        c = Fma(Broadcast(a.sums32.data() + group), int8 ? Mul(minimum, a_scale) : minimum, c);
      Store(job.sums + at, c);
    }
  }
}

// Grouped formats: blocks of one chunk, unpacked to weights[block][P].
template <int MT, int P>
void GroupedTiles(const TileJob& job, const UnpackedBlock* weights, int group, bool minima) {
  const Activations& a = *job.task->a;
  int v = job.first_leaf;
  for (int64_t b = job.block_begin; b < job.block_end; ++b, weights += P) {
    if (b == a.leaf_block[v]) std::memset(job.sums, 0, MT * P * 256 * sizeof(float));
    const uint16_t* a0 = ActivationTile(a, job.row0, b);
    const uint16_t* a1 = MT == 2 ? ActivationTile(a, job.row0 + kTileRows, b) : a0;
    for (int g = 0; g < kBlock / group; ++g) {
      ZeroSums<MT, P>();
      MultiplyTiles<MT, P>(a0 + g * group, a1 + g * group, weights[0].tile + g * group * 32,
                           weights[P - 1].tile + g * group * 32);
      StoreSums<MT, P>(job.products);
      ScaleProducts<MT, P>(job, weights, g, minima, b);
    }
    if (b + 1 == a.leaf_block[v + 1]) EndLeaf<MT, P>(job, v++);
  }
}

// Memory of one thread, carved from its scratch.
struct Scratch {
  UnpackedBlock* weights;
  float* products;
  float* sums;
  int64_t sums_stride;  // of one pair of row tiles

  Scratch(const PanelRange& range, int panels) {
    int levels = 1;
    while (range.task->w->leaves.count() >> levels != 0) ++levels;
    weights = reinterpret_cast<UnpackedBlock*>(range.scratch);
    products = reinterpret_cast<float*>(weights + kMatMulChunkBlocks * panels);
    sums = products + 2 * panels * 256;
    sums_stride = int64_t{2} * panels * 256 * (levels + 1);
  }
};

template <int P>
void DensePanels(const PanelRange& range, int64_t panel) {
  const Scratch scratch(range, P);
  TileJob job{.task = range.task, .column0 = panel * kPanelColumns, .sums = scratch.sums};
  const int64_t rows = range.task->a->rows;
  for (job.row0 = 0; job.row0 < rows; job.row0 += 2 * kTileRows) {
    job.rows = static_cast<int>(std::min<int64_t>(rows - job.row0, 2 * kTileRows));
    job.rows > kTileRows ? DenseTiles<2, P>(job) : DenseTiles<1, P>(job);
  }
}

template <PackedFormat F, int P>
void GroupedPanels(const PanelRange& range, int64_t panel) {
  const Scratch scratch(range, P);
  const PackedMatrix& w = *range.task->w;
  const Activations& a = *range.task->a;
  const auto* stream = w.stream.as<uint8_t>() + panel * w.panel_bytes;
  constexpr PackedLayout kLayout = LayoutOf(F);
  TileJob job{.task = range.task, .column0 = panel * kPanelColumns, .products = scratch.products};
  const int64_t blocks = a.k_padded / kBlock;
  for (job.block_begin = 0; job.block_begin < blocks; job.block_begin = job.block_end) {
    job.block_end = std::min<int64_t>(job.block_begin + kMatMulChunkBlocks, blocks);
    for (int64_t b = job.block_begin; b < job.block_end; ++b) {
      for (int p = 0; p < P; ++p) {
        UnpackBlock<F>(stream + p * w.panel_bytes, b,
                       scratch.weights + (b - job.block_begin) * P + p);
      }
    }
    // The tile loads below name no memory to the compiler.
    __asm__ volatile("" : : : "memory");
    while (a.leaf_block[job.first_leaf + 1] <= job.block_begin) ++job.first_leaf;
    for (job.row0 = 0; job.row0 < a.rows; job.row0 += 2 * kTileRows) {
      job.rows = static_cast<int>(std::min<int64_t>(a.rows - job.row0, 2 * kTileRows));
      job.sums = scratch.sums + job.row0 / (2 * kTileRows) * scratch.sums_stride;
      if (job.rows > kTileRows) {
        GroupedTiles<2, P>(job, scratch.weights, kLayout.group, kLayout.minima);
      } else {
        GroupedTiles<1, P>(job, scratch.weights, kLayout.group, kLayout.minima);
      }
    }
  }
}

void Dense(const PanelRange& range) {
  ConfigureTiles(32);
  int64_t panel = range.begin;
  for (; panel + 2 <= range.end; panel += 2) DensePanels<2>(range, panel);
  if (panel < range.end) DensePanels<1>(range, panel);
  _tile_release();
}

template <PackedFormat F>
void Grouped(const PanelRange& range) {
  ConfigureTiles(LayoutOf(F).group);
  int64_t panel = range.begin;
  for (; panel + 2 <= range.end; panel += 2) GroupedPanels<F, 2>(range, panel);
  if (panel < range.end) GroupedPanels<F, 1>(range, panel);
  _tile_release();
}

bool TilesPay(const MatMulTask& task) {
  const Activations& a = *task.a;
  if (a.act == ActDType::kF32) return false;
  if (!LayoutOf(task.w->format).dense()) return a.rows >= kMinGroupedRows;
  return task.w->format == PackedFormat::kBF16 && a.act == ActDType::kBF16 &&
         a.rows >= kMinDenseRows;
}

}  // namespace

void MatMulPanelsAmx(const PanelRange& range) {
  if (!TilesPay(*range.task)) return MatMulPanelsAvx512(range);
  switch (range.task->w->format) {
    case PackedFormat::kBF16: return Dense(range);
    case PackedFormat::kF8: return Grouped<PackedFormat::kF8>(range);
    case PackedFormat::kQ4_0: return Grouped<PackedFormat::kQ4_0>(range);
    case PackedFormat::kQ4_1: return Grouped<PackedFormat::kQ4_1>(range);
    case PackedFormat::kQ5_0: return Grouped<PackedFormat::kQ5_0>(range);
    case PackedFormat::kQ5_1: return Grouped<PackedFormat::kQ5_1>(range);
    case PackedFormat::kQ8_0: return Grouped<PackedFormat::kQ8_0>(range);
    case PackedFormat::kQ4_K: return Grouped<PackedFormat::kQ4_K>(range);
    case PackedFormat::kQ5_K: return Grouped<PackedFormat::kQ5_K>(range);
    case PackedFormat::kQ6_K: return Grouped<PackedFormat::kQ6_K>(range);
    case PackedFormat::kMXFP4: return Grouped<PackedFormat::kMXFP4>(range);
    case PackedFormat::kF32:
    case PackedFormat::kF16: return MatMulPanelsAvx512(range);
  }
}

}  // namespace sixfold
SF_END_TARGET
