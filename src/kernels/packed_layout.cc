#include "kernels/packed_layout.h"

#include <cstring>

#include "kernels/dequantize.h"

namespace sixfold {

namespace {

template <typename T>
T LoadAt(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

// Code of row k, column j, as stored (unsigned).
int FourBits(const uint8_t* p, int k, int j) {
  const auto word = LoadAt<uint32_t>(p + (k / 8 * kPanelColumns + j) * 4);
  return static_cast<int>(word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15);
}

int FifthBit(const uint8_t* p, int k, int j) {
  return static_cast<int>(LoadAt<uint32_t>(p + 256 + j * 4) >> (k % 2 * 16 + k / 2) & 1);
}

int TopTwoBits(const uint8_t* p, int k, int j) {
  const auto word = LoadAt<uint32_t>(p + 256 + (k / 16 * kPanelColumns + j) * 4);
  return static_cast<int>(word >> (k % 2 * 16 + k % 16 / 2 * 2) & 3);
}

float ValueAt(PackedFormat format, const uint8_t* p, int k, int j) {
  switch (format) {
    case PackedFormat::kF32: return LoadAt<float>(p + (k * kPanelColumns + j) * 4);
    case PackedFormat::kF16: return F16ToF32(LoadAt<uint16_t>(p + (k * kPanelColumns + j) * 2));
    case PackedFormat::kBF16:
      return BF16ToF32(LoadAt<uint16_t>(p + (k / 2 * kPanelColumns + j) * 4 + k % 2 * 2));
    case PackedFormat::kF8: return F8E4M3ToF32(p[EightBitPlace(k, j)]);
    case PackedFormat::kQ8_0:
      return static_cast<float>(static_cast<int8_t>(p[EightBitPlace(k, j)]));
    case PackedFormat::kQ4_0:
    case PackedFormat::kQ4_1:
    case PackedFormat::kQ4_K:
      return static_cast<float>(FourBits(p, k, j) - LayoutOf(format).code_offset);
    case PackedFormat::kMXFP4: return kE2M1Values[FourBits(p, k, j)];
    case PackedFormat::kQ5_0:
    case PackedFormat::kQ5_1:
    case PackedFormat::kQ5_K:
      return static_cast<float>((FourBits(p, k, j) | FifthBit(p, k, j) << 4) -
                                LayoutOf(format).code_offset);
    case PackedFormat::kQ6_K:
      return static_cast<float>((FourBits(p, k, j) | TopTwoBits(p, k, j) << 4) -
                                LayoutOf(format).code_offset);
  }
  return 0;
}

// Scales of a unit's group g in column j for the types that keep them in front.
void ReadKScale(PackedFormat format, const uint8_t* header, int block, int j, PanelBlock* out) {
  const float d = F16ToF32(LoadAt<uint16_t>(header + j * 2));
  if (format == PackedFormat::kQ6_K) {
    for (int half = 0; half < 2; ++half) {
      const auto scale = static_cast<int8_t>(header[32 + (block * 2 + half) * kPanelColumns + j]);
      out->scale[half][j] = d * static_cast<float>(scale);
    }
    return;
  }
  const float m = F16ToF32(LoadAt<uint16_t>(header + 32 + j * 2));
  const int lo = header[64 + block * kPanelColumns + j];
  const int hi = header[192 + block / 2 * kPanelColumns + j] >> (block % 2 * 4);
  out->scale[0][j] = d * static_cast<float>((lo & 15) | (hi & 3) << 4);
  out->minimum[j] = -(m * static_cast<float>((lo >> 4) | (hi >> 2 & 3) << 4));
}

}  // namespace

std::vector<int64_t> LeafBlocks(const Leaves& leaves) {
  std::vector<int64_t> blocks{0};
  for (int v = 0; v < leaves.count(); ++v) {
    blocks.push_back(blocks.back() + (leaves.begin[v + 1] - leaves.begin[v] + kBlock - 1) / kBlock);
  }
  return blocks;
}

int64_t LeafBlockCount(const Leaves& leaves) {
  int64_t blocks = 0;
  for (int v = 0; v < leaves.count(); ++v)
    blocks += (leaves.begin[v + 1] - leaves.begin[v] + kBlock - 1) / kBlock;
  return blocks;
}

void ReadPanelBlock(PackedFormat format, const std::byte* panel, int64_t block, PanelBlock* out) {
  const PackedLayout layout = LayoutOf(format);
  const auto* unit =
      reinterpret_cast<const uint8_t*>(panel) + block / layout.unit_blocks * layout.unit_bytes();
  const int within = static_cast<int>(block % layout.unit_blocks);
  const uint8_t* p = unit + layout.header_bytes + within * layout.block_bytes;
  for (int k = 0; k < kBlock; ++k) {
    for (int j = 0; j < kPanelColumns; ++j) out->values[k][j] = ValueAt(format, p, k, j);
  }
  if (layout.dense()) return;
  for (int j = 0; j < kPanelColumns; ++j) {
    if (layout.header_bytes > 0) {
      ReadKScale(format, unit, within, j, out);
    } else if (format == PackedFormat::kF8) {
      out->scale[0][j] = LoadAt<float>(p + 512 + j * 4);
    } else if (format == PackedFormat::kMXFP4) {
      out->scale[0][j] = E8M0ToF32(p[256 + j]);
    } else {
      const uint8_t* scales = p + layout.block_bytes - (layout.minima ? 64 : 32);
      out->scale[0][j] = F16ToF32(LoadAt<uint16_t>(scales + j * 2));
      if (layout.minima) out->minimum[j] = F16ToF32(LoadAt<uint16_t>(scales + 32 + j * 2));
    }
  }
}

}  // namespace sixfold
