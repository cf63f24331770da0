#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/packed_layout.h"
#include "kernels/x86/matmul_x86.h"
#include "kernels/x86/target.h"

SF_BEGIN_TARGET(SF_TARGET_AVX2)
namespace sixfold {
namespace {

#define SF_INLINE inline __attribute__((always_inline))

// Columns 0 to 7 and 8 to 15.
struct V {
  __m256 a, b;
};

constexpr int kVectorRows = 2;
constexpr int kMaxVectorRows = 2;
constexpr int kTileRows = 3;  // 3 x (e, o) x two registers, a weight in two, one activation: 15 of 16
constexpr int kTilePanels = 1;
constexpr int kChunkBlocks = kMatMulChunkBlocks;

SF_INLINE V Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SF_INLINE V Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SF_INLINE void Store(float* p, V v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
SF_INLINE V Broadcast(const float* p) {
  const __m256 x = _mm256_broadcast_ss(p);
  return {x, x};
}
SF_INLINE V Fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
SF_INLINE V Add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
SF_INLINE V Mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
SF_INLINE V Negate(V x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}

struct Dwords16 {
  __m256i a, b;
};
SF_INLINE Dwords16 Dwords(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
SF_INLINE Dwords16 And(Dwords16 v, int mask) {
  const __m256i m = _mm256_set1_epi32(mask);
  return {_mm256_and_si256(v.a, m), _mm256_and_si256(v.b, m)};
}
SF_INLINE Dwords16 Or(Dwords16 x, Dwords16 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int kBits>
SF_INLINE Dwords16 Left(Dwords16 v) {
  return {_mm256_slli_epi32(v.a, kBits), _mm256_slli_epi32(v.b, kBits)};
}
template <int kBits>
SF_INLINE Dwords16 RightSigned(Dwords16 v) {
  return {_mm256_srai_epi32(v.a, kBits), _mm256_srai_epi32(v.b, kBits)};
}
SF_INLINE Dwords16 RightBy(Dwords16 v, int bits) {
  const __m128i count = _mm_cvtsi32_si128(bits);
  return {_mm256_srl_epi32(v.a, count), _mm256_srl_epi32(v.b, count)};
}
// Bits of v moved so that bit `from` lands at bit `to`.
template <int kFrom, int kTo>
SF_INLINE Dwords16 MoveBit(Dwords16 v) {
  if constexpr (kFrom > kTo) return {_mm256_srli_epi32(v.a, kFrom - kTo), _mm256_srli_epi32(v.b, kFrom - kTo)};
  if constexpr (kFrom < kTo) return Left<kTo - kFrom>(v);
  return v;
}
SF_INLINE V AsFloat(Dwords16 v) { return {_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)}; }
SF_INLINE V ToFloat(Dwords16 v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
template <int kOffset>
SF_INLINE V ToFloatLess(Dwords16 v) {
  if constexpr (kOffset == 0) return ToFloat(v);
  const __m256i offset = _mm256_set1_epi32(kOffset);
  return ToFloat({_mm256_sub_epi32(v.a, offset), _mm256_sub_epi32(v.b, offset)});
}

SF_INLINE V Halves(const uint8_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
SF_INLINE Dwords16 UnsignedBytes(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
SF_INLINE V SignedBytes(const uint8_t* p) { return ToFloat(RightSigned<24>(Left<24>(UnsignedBytes(p)))); }
// Four low bits from lo >> lo_shift, two top bits from hi >> hi_shift.
SF_INLINE V SixBits(const uint8_t* lo, int lo_shift, const uint8_t* hi, int hi_shift) {
  const Dwords16 low = And(RightBy(UnsignedBytes(lo), lo_shift), 15);
  const Dwords16 top = And(RightBy(UnsignedBytes(hi), hi_shift), 3);
  return ToFloat(Or(low, Left<4>(top)));
}

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
    const Dwords16 pair = Dwords(p + I * 64);
    *e = AsFloat(Left<16>(pair));
    *o = AsFloat(And(pair, static_cast<int>(0xffff0000u)));
  }
};

// One E4M3 code in the low byte of each dword. Subnormal codes are small integers times 2^-9.
SF_INLINE __m256 F8ToFloat(__m256i code) {
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256 normal =
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23)));
  const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
  const __m256 is_normal = _mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(7)));
  const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
  const __m256i nan = _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7fc00000));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  return _mm256_or_ps(_mm256_blendv_ps(subnormal, normal, is_normal), _mm256_castsi256_ps(_mm256_or_si256(nan, sign)));
}

template <>
struct Unpack<PackedFormat::kF8> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const Dwords16 v = Dwords(p + I / 2 * 64);
    const Dwords16 even = MoveBit<8 * (I % 2), 0>(v);
    const Dwords16 odd = MoveBit<8 * (I % 2) + 16, 0>(v);
    *e = {F8ToFloat(even.a), F8ToFloat(even.b)};
    *o = {F8ToFloat(odd.a), F8ToFloat(odd.b)};
  }
};

template <>
struct Unpack<PackedFormat::kQ8_0> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const Dwords16 v = Dwords(p + I / 2 * 64);
    *e = ToFloat(RightSigned<24>(Left<24 - 8 * (I % 2)>(v)));
    *o = ToFloat(RightSigned<24>(MoveBit<8 * (I % 2), 8>(v)));
  }
};

template <int kOffset>
struct UnpackFour {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const Dwords16 v = Dwords(p + I / 4 * 64);
    *e = ToFloatLess<kOffset>(And(MoveBit<I % 4 * 4, 0>(v), 15));
    *o = ToFloatLess<kOffset>(And(MoveBit<16 + I % 4 * 4, 0>(v), 15));
  }
};
template <> struct Unpack<PackedFormat::kQ4_0> : UnpackFour<8> {};
template <> struct Unpack<PackedFormat::kQ4_1> : UnpackFour<0> {};
template <> struct Unpack<PackedFormat::kQ4_K> : UnpackFour<0> {};

template <int kOffset>
struct UnpackFive {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const Dwords16 v = Dwords(p + I / 4 * 64);
    const Dwords16 fifth = Dwords(p + 256);
    *e = ToFloatLess<kOffset>(Or(And(MoveBit<I % 4 * 4, 0>(v), 15), And(MoveBit<I, 4>(fifth), 16)));
    *o = ToFloatLess<kOffset>(Or(And(MoveBit<16 + I % 4 * 4, 0>(v), 15), And(MoveBit<16 + I, 4>(fifth), 16)));
  }
};
template <> struct Unpack<PackedFormat::kQ5_0> : UnpackFive<16> {};
template <> struct Unpack<PackedFormat::kQ5_1> : UnpackFive<0> {};
template <> struct Unpack<PackedFormat::kQ5_K> : UnpackFive<0> {};

template <>
struct Unpack<PackedFormat::kQ6_K> {
  template <int I>
  static SF_INLINE void Pair(const uint8_t* p, V* e, V* o) {
    const Dwords16 v = Dwords(p + I / 4 * 64);
    const Dwords16 two = Dwords(p + 256 + I / 8 * 64);
    *e = ToFloatLess<32>(Or(And(MoveBit<I % 4 * 4, 0>(v), 15), And(MoveBit<I % 8 * 2, 4>(two), 48)));
    *o = ToFloatLess<32>(Or(And(MoveBit<16 + I % 4 * 4, 0>(v), 15), And(MoveBit<16 + I % 8 * 2, 4>(two), 48)));
  }
};

#include "kernels/x86/matmul_body.inc"

}  // namespace

void MatMulPanelsAvx2(const PanelRange& range) { RunPanelsOfAnyFormat(range); }

}  // namespace sixfold
SF_END_TARGET
