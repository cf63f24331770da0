// gcc 12 warns about the undefined operands inside its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"
#include "kernels/x86/target.h"

SF_BEGIN_TARGET(SF_TARGET_AVX512)
namespace sixfold {
namespace {

#define SF_INLINE inline __attribute__((always_inline))

using V = __m512;

constexpr int kVectorRows = 6;      // rows that share one pass over packed weights
constexpr int kMaxVectorRows = 24;  // more rows unpack to memory
constexpr int kTileRows = 7;        // 7 x 2 x (e, o) accumulators, two weights, one activation: 31 of 32 registers
constexpr int kTilePanels = 2;
constexpr int kChunkBlocks = kMatMulChunkBlocks;

SF_INLINE V Zero() { return _mm512_setzero_ps(); }
SF_INLINE V Load(const float* p) { return _mm512_loadu_ps(p); }
SF_INLINE void Store(float* p, V v) { _mm512_storeu_ps(p, v); }
SF_INLINE V Broadcast(const float* p) { return _mm512_set1_ps(*p); }
SF_INLINE V Fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
SF_INLINE V Add(V a, V b) { return _mm512_add_ps(a, b); }
SF_INLINE V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
SF_INLINE V Negate(V a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
SF_INLINE __m512i Dwords(const uint8_t* p) { return _mm512_loadu_si512(p); }
SF_INLINE V AsFloat(__m512i v) { return _mm512_castsi512_ps(v); }

SF_INLINE V Halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
SF_INLINE __m512i UnsignedBytes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SF_INLINE V SignedBytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Four low bits from lo >> lo_shift, two top bits from hi >> hi_shift.
SF_INLINE V SixBits(const uint8_t* lo, int lo_shift, const uint8_t* hi, int hi_shift) {
  const __m512i low = _mm512_and_si512(_mm512_srl_epi32(UnsignedBytes(lo), _mm_cvtsi32_si128(lo_shift)),
                                       _mm512_set1_epi32(15));
  const __m512i top = _mm512_and_si512(_mm512_srl_epi32(UnsignedBytes(hi), _mm_cvtsi32_si128(hi_shift)),
                                       _mm512_set1_epi32(3));
  return _mm512_cvtepi32_ps(_mm512_or_si512(low, _mm512_slli_epi32(top, 4)));
}

// Bits of v moved so that bit `from` lands at bit `to`.
template <int kFrom, int kTo>
SF_INLINE __m512i MoveBit(__m512i v) {
  if constexpr (kFrom > kTo) return _mm512_srli_epi32(v, kFrom - kTo);
  if constexpr (kFrom < kTo) return _mm512_slli_epi32(v, kTo - kFrom);
  return v;
}
constexpr int kSelect = 0xca;  // ternary logic: first ? second : third, bit by bit

template <PackedFormat F>
struct Unpack;

template <>
struct Unpack<PackedFormat::kF32> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    *e = Load(reinterpret_cast<const float*>(p) + 2 * I * 16);
    *o = Load(reinterpret_cast<const float*>(p) + (2 * I + 1) * 16);
  }
};

template <>
struct Unpack<PackedFormat::kF16> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    *e = Halves(p + 2 * I * 32);
    *o = Halves(p + (2 * I + 1) * 32);
  }
};

template <>
struct Unpack<PackedFormat::kBF16> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const __m512i pair = Dwords(p + I * 64);
    *e = AsFloat(_mm512_slli_epi32(pair, 16));
    *o = AsFloat(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

// E4M3 pairs become bf16 pairs first: exact, and half the work. Subnormal codes come from a table.
SF_INLINE __m512i F8ToBF16(__m512i high_bytes) {
  const __m512i magnitude = _mm512_and_si512(_mm512_srli_epi16(high_bytes, 8), _mm512_set1_epi16(0x7f));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  // m * 2^-9 for m = 0 .. 7 as bf16, 32 words long.
  const __m512i subnormal = _mm512_broadcast_i32x4(_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __mmask32 is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  __m512i bits = _mm512_mask_permutexvar_epi16(normal, is_small, magnitude, subnormal);
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
  bits = _mm512_mask_mov_epi16(bits, is_nan, _mm512_set1_epi16(0x7fc0));
  return _mm512_or_si512(bits, _mm512_and_si512(high_bytes, _mm512_set1_epi16(static_cast<short>(0x8000))));
}

template <>
struct Unpack<PackedFormat::kF8> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const __m512i v = Dwords(p + I / 2 * 64);
    const __m512i pair = F8ToBF16(I % 2 == 0 ? _mm512_slli_epi16(v, 8) : v);
    *e = AsFloat(_mm512_slli_epi32(pair, 16));
    *o = AsFloat(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

template <>
struct Unpack<PackedFormat::kQ8_0> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const __m512i v = Dwords(p + I / 2 * 64);
    constexpr int kByte = I % 2;
    *e = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * kByte), 24));
    *o = _mm512_cvtepi32_ps(_mm512_srai_epi32(kByte == 1 ? v : _mm512_slli_epi32(v, 8), 24));
  }
};

// One shift and one table look-up (which reads four index bits) a vector.
template <int kOffset>
struct UnpackFour {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const __m512i v = Dwords(p + I / 4 * 64);
    const V table = _mm512_setr_ps(0 - kOffset, 1 - kOffset, 2 - kOffset, 3 - kOffset, 4 - kOffset, 5 - kOffset,
                                   6 - kOffset, 7 - kOffset, 8 - kOffset, 9 - kOffset, 10 - kOffset, 11 - kOffset,
                                   12 - kOffset, 13 - kOffset, 14 - kOffset, 15 - kOffset);
    *e = _mm512_permutexvar_ps(I % 4 == 0 ? v : _mm512_srli_epi32(v, I % 4 * 4), table);
    *o = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 16 + I % 4 * 4), table);
  }
};
template <> struct Unpack<PackedFormat::kQ4_0> : UnpackFour<8> {};
template <> struct Unpack<PackedFormat::kQ4_1> : UnpackFour<0> {};
template <> struct Unpack<PackedFormat::kQ4_K> : UnpackFour<0> {};

// Four bits from one place, the fifth from another, then a look-up in two registers.
template <int kOffset>
struct UnpackFive {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const __m512i v = Dwords(p + I / 4 * 64);
    const __m512i fifth = Dwords(p + 256);
    const __m512i low = _mm512_set1_epi32(15);
    const V first = _mm512_setr_ps(0 - kOffset, 1 - kOffset, 2 - kOffset, 3 - kOffset, 4 - kOffset, 5 - kOffset,
                                   6 - kOffset, 7 - kOffset, 8 - kOffset, 9 - kOffset, 10 - kOffset, 11 - kOffset,
                                   12 - kOffset, 13 - kOffset, 14 - kOffset, 15 - kOffset);
    const V second = _mm512_add_ps(first, _mm512_set1_ps(16));
    const __m512i even = _mm512_ternarylogic_epi32(low, MoveBit<I % 4 * 4, 0>(v), MoveBit<I, 4>(fifth), kSelect);
    const __m512i odd = _mm512_ternarylogic_epi32(low, MoveBit<16 + I % 4 * 4, 0>(v), MoveBit<16 + I, 4>(fifth), kSelect);
    *e = _mm512_permutex2var_ps(first, even, second);
    *o = _mm512_permutex2var_ps(first, odd, second);
  }
};
template <> struct Unpack<PackedFormat::kQ5_0> : UnpackFive<16> {};
template <> struct Unpack<PackedFormat::kQ5_1> : UnpackFive<0> {};
template <> struct Unpack<PackedFormat::kQ5_K> : UnpackFive<0> {};

// Six bits go into the mantissa of 2^23, and 2^23 + 32 is taken away: exact.
template <>
struct Unpack<PackedFormat::kQ6_K> {
  static SF_INLINE V Code(__m512i low, __m512i top) {
    const __m512i six = _mm512_ternarylogic_epi32(_mm512_set1_epi32(15), low, top, kSelect);
    const __m512i bits = _mm512_ternarylogic_epi32(_mm512_set1_epi32(63), six, _mm512_set1_epi32(0x4b000000), kAndOr);
    return _mm512_sub_ps(AsFloat(bits), _mm512_set1_ps(8388608.0f + 32.0f));
  }
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const __m512i v = Dwords(p + I / 4 * 64);
    const __m512i two = Dwords(p + 256 + I / 8 * 64);
    *e = Code(MoveBit<I % 4 * 4, 0>(v), MoveBit<I % 8 * 2, 4>(two));
    *o = Code(MoveBit<16 + I % 4 * 4, 0>(v), MoveBit<16 + I % 8 * 2, 4>(two));
  }
  static constexpr int kAndOr = 0xea;  // (first & second) | third
};

#include "kernels/x86/matmul_body.inc"

}  // namespace

void MatMulPanelsAvx512(const PanelRange& range) { RunPanelsOfAnyFormat(range); }

}  // namespace sixfold
SF_END_TARGET
