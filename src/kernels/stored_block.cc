// Layouts after ggml's ggml-common.h as the `gguf` Python package reads them (gguf/quants.py).
#include "kernels/stored_block.h"

#include <cstring>

#include "base/check.h"

namespace sixfold {

namespace {

uint16_t LoadU16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

uint32_t LoadU32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// 32 codes: the low nibbles of 16 bytes, then their high nibbles.
void Nibbles16(const uint8_t* qs, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = qs[i] & 15;
    codes[i + 16] = qs[i] >> 4;
  }
}

void FifthBits(const uint8_t* qh, uint8_t* codes) {
  const uint32_t bits = LoadU32(qh);
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes; the upper four of each lend their top bits
// to bytes 0 to 7.
void ScalesAndMinima(const uint8_t* s, StoredBlock* out) {
  for (int g = 0; g < 4; ++g) {
    out->scales[g] = static_cast<int8_t>(s[g] & 63);
    out->minima[g] = s[g + 4] & 63;
    out->scales[g + 4] = static_cast<int8_t>((s[g + 8] & 15) | (s[g] >> 2 & 48));
    out->minima[g + 4] = static_cast<uint8_t>((s[g + 8] >> 4) | (s[g + 4] >> 2 & 48));
  }
}

// Q4_K and Q5_K: 64 codes from 32 bytes, low nibbles first; the fifth bit of 32-group g is bit g of
// qh's bytes.
void KCodes(const uint8_t* qh, const uint8_t* qs, uint8_t* codes) {
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < 32; ++i) {
      const int nibble = qs[g / 2 * 32 + i] >> (g % 2 * 4) & 15;
      const int fifth = qh == nullptr ? 0 : qh[i] >> g & 1;
      codes[g * 32 + i] = static_cast<uint8_t>(nibble | fifth << 4);
    }
  }
}

// Q6_K: 128 codes from 64 bytes of low nibbles and 32 bytes that hold four 2-bit tops each.
void Q6KCodes(const uint8_t* ql, const uint8_t* qh, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int part = 0; part < 4; ++part) {
      for (int i = 0; i < 32; ++i) {
        const int low = ql[half * 64 + part % 2 * 32 + i] >> (part / 2 * 4) & 15;
        const int top = qh[half * 32 + i] >> (part * 2) & 3;
        codes[half * 128 + part * 32 + i] = static_cast<uint8_t>(low | top << 4);
      }
    }
  }
}

}  // namespace

void ReadStoredBlock(DType dtype, const uint8_t* b, StoredBlock* out) {
  const DTypeInfo& info = InfoOf(dtype);
  out->elements = info.block_elements;
  out->group = dtype == DType::kQ6_K ? 16 : 32;
  out->m = 0;
  switch (dtype) {
    case DType::kQ4_0:
      out->d = LoadU16(b);
      Nibbles16(b + 2, out->codes);
      return;
    case DType::kQ4_1:
      out->d = LoadU16(b);
      out->m = LoadU16(b + 2);
      Nibbles16(b + 4, out->codes);
      return;
    case DType::kQ5_0:
      out->d = LoadU16(b);
      Nibbles16(b + 6, out->codes);
      FifthBits(b + 2, out->codes);
      return;
    case DType::kQ5_1:
      out->d = LoadU16(b);
      out->m = LoadU16(b + 2);
      Nibbles16(b + 8, out->codes);
      FifthBits(b + 4, out->codes);
      return;
    case DType::kQ8_0:
      out->d = LoadU16(b);
      std::memcpy(out->codes, b + 2, 32);
      return;
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const bool five = dtype == DType::kQ5_K;
      out->d = LoadU16(b);
      out->m = LoadU16(b + 2);
      ScalesAndMinima(b + 4, out);
      KCodes(five ? b + 16 : nullptr, five ? b + 48 : b + 16, out->codes);
      return;
    }
    case DType::kQ6_K:
      Q6KCodes(b, b + 128, out->codes);
      std::memcpy(out->scales, b + 192, 16);
      out->d = LoadU16(b + 208);
      return;
    case DType::kMXFP4:
      out->d = b[0];
      Nibbles16(b + 1, out->codes);
      return;
    case DType::kMXFP4Split:
      // Neighbours share a byte, the lower nibble first.
      out->d = 0;
      for (int i = 0; i < 32; ++i) out->codes[i] = static_cast<uint8_t>(b[i / 2] >> (i % 2 * 4) & 15);
      return;
    default: SF_CHECK(false);
  }
}

}  // namespace sixfold
