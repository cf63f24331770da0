// Products of int8 activations with integer codes: VPDPBUSD adds four products of unsigned weights
// and signed activations a lane. Codes are taken as stored, unsigned; an offset is paid back with
// the sum of the activations. E2M1 codes are taken as twice their value. All sums are below 2^24, so turning them into fp32 is
// exact.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // gcc 12 warns inside its own intrinsics
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"
#include "kernels/x86/target.h"

SF_BEGIN_TARGET(SF_TARGET_VNNI)
namespace sixfold {
namespace {

#include "kernels/x86/weights_avx512.inc"

// The eight k of quad d as two vectors of bytes, in kCodeOrder.
struct QuadBytes {
  __m512i first, second;
};

SF_INLINE __m512i Bytes(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

SF_INLINE QuadBytes Nibbles(const uint8_t* p, int d) {
  const __m512i v = Dwords(p + d * 64);
  return {_mm512_and_si512(v, Bytes(15)), _mm512_and_si512(_mm512_srli_epi16(v, 4), Bytes(15))};
}

SF_INLINE __m512i Merge(__m512i nibbles, __m512i low, __m512i low_mask, __m512i high,
                        __m512i high_mask) {
  return AndOr(low, low_mask, AndOr(high, high_mask, nibbles));
}

// Pair i's bits of `bits` (even k in the low half, odd k in the high half, kWidth bits each) go
// above its nibbles: pairs 0 and 2 are the low and high bytes of the first vector, 1 and 3 those of
// the second.
template <int kWidth>
SF_INLINE QuadBytes AddTopBits(const QuadBytes& q, __m512i bits) {
  constexpr int kMask = (1 << kWidth) - 1;
  const __m512i low = _mm512_set1_epi32(kMask << 4 | kMask << 20);
  const __m512i high = _mm512_set1_epi32(kMask << 12 | kMask << 28);
  return {Merge(q.first, MoveBit<0, 4>(bits), low, MoveBit<2 * kWidth, 12>(bits), high),
          Merge(q.second, MoveBit<kWidth, 4>(bits), low, MoveBit<3 * kWidth, 12>(bits), high)};
}

// Twice the value of E2M1 codes, and 12 more.
SF_INLINE __m512i DoubledE2M1(__m512i codes) {
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

template <PackedFormat F>
SF_INLINE QuadBytes ReadQuad(const uint8_t* p, int d) {
  if constexpr (F == PackedFormat::kQ8_0) {
    // Signed to unsigned: 128 more.
    return {_mm512_xor_si512(Dwords(p + d * 128), Bytes(128)),
            _mm512_xor_si512(Dwords(p + d * 128 + 64), Bytes(128))};
  } else if constexpr (F == PackedFormat::kQ6_K) {
    const __m512i two =
        _mm512_srl_epi32(Dwords(p + 256 + d / 2 * 64), _mm_cvtsi32_si128(d % 2 * 8));
    return AddTopBits<2>(Nibbles(p, d), two);
  } else if constexpr (F == PackedFormat::kQ5_0 || F == PackedFormat::kQ5_1 ||
                       F == PackedFormat::kQ5_K) {
    return AddTopBits<1>(Nibbles(p, d),
                         _mm512_srl_epi32(Dwords(p + 256), _mm_cvtsi32_si128(4 * d)));
  } else if constexpr (F == PackedFormat::kMXFP4) {
    const QuadBytes codes = Nibbles(p, d);
    return {DoubledE2M1(codes.first), DoubledE2M1(codes.second)};
  } else {
    return Nibbles(p, d);
  }
}

SF_INLINE __m512i BroadcastDword(const int8_t* p) {
  int v;
  std::memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

// Sums over quads [d, end) of unsigned codes times activations, and (Q6_K) less 32 times the
// activations.
template <PackedFormat F, int R>
SF_INLINE void AddQuads(const uint8_t* codes, int d, int end, const int8_t* const (&x)[R],
                        __m512i (&sum)[R]) {
  constexpr bool kPayBack = LayoutOf(F).group == 16;  // no sums of 16 activations are kept
  __m512i paid[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = paid[r] = _mm512_setzero_si512();
  for (; d < end; ++d) {
    const QuadBytes q = ReadQuad<F>(codes, d);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512i first = BroadcastDword(x[r] + 8 * d);
      const __m512i second = BroadcastDword(x[r] + 8 * d + 4);
      sum[r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum[r], q.first, first), q.second, second);
      if constexpr (kPayBack) {
        paid[r] =
            _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(paid[r], Bytes(32), first), Bytes(32), second);
      }
    }
  }
  if constexpr (kPayBack) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = _mm512_sub_epi32(sum[r], paid[r]);
  }
}

template <PackedFormat F, int R>
SF_INLINE void AddBlock(const Activations& a, const BlockAt& at, const int8_t* const (&x)[R],
                        int64_t group0, V (&c)[R]) {
  constexpr PackedLayout kLayout = LayoutOf(F);
  constexpr int kOffset = F == PackedFormat::kQ8_0 ? 128
                          : F == PackedFormat::kMXFP4 ? 12
                          : kLayout.group == 16    ? 0
                                                   : kLayout.code_offset;
  constexpr int kGroups = kBlock / kLayout.group;
  const int64_t blocks = a.k_padded / kBlock;
  for (int g = 0; g < kGroups; ++g) {
    __m512i sum[R];
    AddQuads<F, R>(at.codes, g * 4 / kGroups, (g + 1) * 4 / kGroups, x, sum);
    const V scale = ScaleOf<F>(at, g);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t group = group0 + r * blocks;
      V p = _mm512_cvtepi32_ps(sum[r]);
      if constexpr (kOffset != 0)
        p = Fma(Broadcast(a.sums32.data() + group), _mm512_set1_ps(-kOffset), p);
      if constexpr (F == PackedFormat::kMXFP4) p = Mul(p, _mm512_set1_ps(0.5f));
      c[r] = Fma(p, Mul(scale, Broadcast(a.scales.data() + group)), c[r]);
    }
  }
  if constexpr (kLayout.minima) {
    const V minimum = MinimumOf<F>(at);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t group = group0 + r * blocks;
      c[r] = Fma(Broadcast(a.sums32.data() + group),
                 Mul(minimum, Broadcast(a.scales.data() + group)), c[r]);
    }
  }
}

// Rows [row0, row0 + R) of one panel.
template <PackedFormat F, int R>
void Panel(const PanelRange& range, int64_t panel_index, int64_t row0) {
  const MatMulTask& task = *range.task;
  const Activations& a = *task.a;
  const PackedMatrix& w = *task.w;
  const auto* panel = w.stream.as<uint8_t>() + panel_index * w.panel_bytes;
  const int columns =
      static_cast<int>(std::min<int64_t>(kPanelColumns, w.n - panel_index * kPanelColumns));
  const int64_t blocks = a.k_padded / kBlock;
  auto* stack = reinterpret_cast<float*>(range.scratch);  // [level][R][16]
  float* out = task.out + row0 * task.out_stride + panel_index * kPanelColumns;
  for (int v = 0; v < w.leaves.count(); ++v) {
    V c[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) c[r] = Zero();
    for (int64_t b = a.leaf_block[v]; b < a.leaf_block[v + 1]; ++b) {
      const int8_t* x[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) x[r] = a.codes.data() + (row0 + r) * a.k_padded + b * kBlock;
      AddBlock<F, R>(a, FindBlock<F>(panel, b), x, row0 * blocks + b, c);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int level;
      const V node = MergeLeaf(c[r], stack + r * kPanelColumns, R * kPanelColumns, v,
                               w.leaves.count(), &level);
      if (level < 0) {
        StoreColumns(out + r * task.out_stride, node, columns);
      } else {
        Store(stack + (level * R + r) * kPanelColumns, node);
      }
    }
  }
}

template <PackedFormat F>
void Panels(const PanelRange& range) {
  const int64_t rows = range.task->a->rows;
  for (int64_t panel = range.begin; panel < range.end; ++panel) {
    int64_t row = 0;
    for (; row + 8 <= rows; row += 8) Panel<F, 8>(range, panel, row);
    for (; row + 4 <= rows; row += 4) Panel<F, 4>(range, panel, row);
    for (; row + 2 <= rows; row += 2) Panel<F, 2>(range, panel, row);
    for (; row < rows; ++row) Panel<F, 1>(range, panel, row);
  }
}

}  // namespace

bool HasVnni() { return __builtin_cpu_supports("avx512vnni"); }

bool VnniReads(PackedFormat format) {
  return !LayoutOf(format).dense() && format != PackedFormat::kF8;
}

void MatMulPanelsVnni(const PanelRange& range) {
  switch (range.task->w->format) {
    case PackedFormat::kQ4_0: return Panels<PackedFormat::kQ4_0>(range);
    case PackedFormat::kQ4_1: return Panels<PackedFormat::kQ4_1>(range);
    case PackedFormat::kQ5_0: return Panels<PackedFormat::kQ5_0>(range);
    case PackedFormat::kQ5_1: return Panels<PackedFormat::kQ5_1>(range);
    case PackedFormat::kQ8_0: return Panels<PackedFormat::kQ8_0>(range);
    case PackedFormat::kQ4_K: return Panels<PackedFormat::kQ4_K>(range);
    case PackedFormat::kQ5_K: return Panels<PackedFormat::kQ5_K>(range);
    case PackedFormat::kQ6_K: return Panels<PackedFormat::kQ6_K>(range);
    case PackedFormat::kMXFP4: return Panels<PackedFormat::kMXFP4>(range);
    case PackedFormat::kF32:
    case PackedFormat::kF16:
    case PackedFormat::kBF16:
    case PackedFormat::kF8: SF_CHECK(VnniReads(range.task->w->format));
  }
}

}  // namespace sixfold
SF_END_TARGET
