// How PackedMatrix::stream holds one panel of 16 output columns. Everything that reads or writes
// the stream asks here.
//
// A panel is a sequence of units, a unit one or (K types) eight blocks of 32 k for 16 columns.
// "dword j" is the 32-bit word of column j. In codes the low half of a dword holds even k and the
// high half odd k, ascending, so that one 16-bit shift yields a pair (even, odd) of every column:
// the B layout of AMX; a 32-bit shift yields either alone. Low and high nibbles of four-bit codes
// are the bytes of eight-bit codes, so that both meet activations in one order (kCodeOrder).
//
//   bf16   [16 pairs][16 columns] dwords (even k low, odd k high)
//   f16    [32 k][16 columns]
//   f32    [32 k][16 columns]
//   8 bit  [4 d][2][16 columns] dwords: bytes k = 8d + {0, 4, 1, 5}, then 8d + {2, 6, 3, 7}
//   4 bit  [4 d][16 columns] dwords: nibble i of the low half is k = 8d + 2i, of the high half + 1
//   5 bit  the 4 bit part, then [16 columns] dwords of fifth bits:
//          bit t of the low half is k = 2t, of the high half k = 2t + 1
//   6 bit  the 4 bit part, then [2 u][16 columns] dwords of two bits:
//          bits 2t and 2t + 1 of the low half are k = 16u + 2t, of the high half + 1
//
// Scales follow the codes of their block: f16 d [16], then f16 m [16] (Q4_1, Q5_1); F8: f32 [16];
// MXFP4: E8M0 bytes [16].
// K types carry them in front of the unit. Q6_K: f16 d [16], then int8 scales [16 groups][16].
// Q4_K, Q5_K: f16 d [16], f16 m [16], then for group g and column j
//   lo[g][j] = scale & 15 | (minimum & 15) << 4                           8 x 16 bytes
//   hi[g / 2][j] = scale >> 4 | (minimum >> 4) << 2, << 4 for odd g       4 x 16 bytes
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace sixfold {

inline constexpr int kPanelColumns = 16;
inline constexpr int kBlock = 32;  // k in one block

// Order of the eight codes of k = 8d .. 8d + 7 in memory: of eight-bit weights and of int8
// activations.
inline constexpr int kCodeOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// Byte of the code of k within one block of eight-bit codes of 16 columns.
constexpr int EightBitPlace(int k, int column) {
  const int pair = k % 8 / 2;
  return ((k / 8 * 2 + pair % 2) * kPanelColumns + column) * 4 + k % 2 * 2 + pair / 2;
}

struct PackedLayout {
  int unit_blocks = 1;   // blocks of 32 k in a unit
  int header_bytes = 0;  // scales of the whole unit (K types)
  int block_bytes = 0;   // one block of 16 columns after the header
  int group = 0;         // k that share a scale: 32, 16; 0: dense
  bool minima = false;
  int code_offset = 0;  // subtracted from a stored code

  constexpr int unit_bytes() const { return header_bytes + unit_blocks * block_bytes; }
  constexpr bool dense() const { return group == 0; }
};

constexpr PackedLayout LayoutOf(PackedFormat format) {
  switch (format) {
    case PackedFormat::kF32: return {.block_bytes = 2048};
    case PackedFormat::kF16:
    case PackedFormat::kBF16: return {.block_bytes = 1024};
    case PackedFormat::kF8: return {.block_bytes = 512 + 64, .group = 32};
    case PackedFormat::kQ4_0: return {.block_bytes = 256 + 32, .group = 32, .code_offset = 8};
    case PackedFormat::kQ4_1: return {.block_bytes = 256 + 64, .group = 32, .minima = true};
    case PackedFormat::kQ5_0: return {.block_bytes = 320 + 32, .group = 32, .code_offset = 16};
    case PackedFormat::kQ5_1: return {.block_bytes = 320 + 64, .group = 32, .minima = true};
    case PackedFormat::kQ8_0: return {.block_bytes = 512 + 32, .group = 32};
    case PackedFormat::kMXFP4: return {.block_bytes = 256 + 16, .group = 32};
    case PackedFormat::kQ4_K:
      return {
          .unit_blocks = 8, .header_bytes = 256, .block_bytes = 256, .group = 32, .minima = true};
    case PackedFormat::kQ5_K:
      return {
          .unit_blocks = 8, .header_bytes = 256, .block_bytes = 320, .group = 32, .minima = true};
    case PackedFormat::kQ6_K:
      return {.unit_blocks = 8,
              .header_bytes = 288,
              .block_bytes = 384,
              .group = 16,
              .code_offset = 32};
  }
  return {};
}

// First 32-block of each leaf when every leaf is padded to whole blocks, and the number of blocks
// at the end.
std::vector<int64_t> LeafBlocks(const Leaves& leaves);
int64_t LeafBlockCount(const Leaves& leaves);

// One block of one panel as numbers: the scalar reader of the stream.
struct PanelBlock {
  float values[kBlock][kPanelColumns];  // weights (dense) or codes less the offset
  float scale[2][kPanelColumns];        // one or two groups
  float minimum[kPanelColumns];  // what multiplies the sum of activations: m, or -(dmin * m) for K
                                 // types
};
void ReadPanelBlock(PackedFormat format, const std::byte* panel, int64_t block, PanelBlock* out);

}  // namespace sixfold
