// Writes the stream of kernels/packed_layout.h from a matrix as a file stores it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "kernels/packed_layout.h"
#include "kernels/stored_block.h"

namespace sixfold {

namespace {

template <typename T>
T LoadAt(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}

void StoreU16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

void OrU32(uint8_t* p, uint32_t bits) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  v |= bits;
  std::memcpy(p, &v, 4);
}

PackedFormat FormatOf(DType dtype, ActDType act) {
  switch (dtype) {
    case DType::kF32: return act == ActDType::kBF16 ? PackedFormat::kBF16 : PackedFormat::kF32;
    case DType::kF16: return act == ActDType::kBF16 ? PackedFormat::kBF16 : PackedFormat::kF16;
    case DType::kBF16: return PackedFormat::kBF16;
    case DType::kF8E4M3: return PackedFormat::kF8;
    case DType::kQ4_0: return PackedFormat::kQ4_0;
    case DType::kQ4_1: return PackedFormat::kQ4_1;
    case DType::kQ5_0: return PackedFormat::kQ5_0;
    case DType::kQ5_1: return PackedFormat::kQ5_1;
    case DType::kQ8_0: return PackedFormat::kQ8_0;
    case DType::kQ4_K: return PackedFormat::kQ4_K;
    case DType::kQ5_K: return PackedFormat::kQ5_K;
    case DType::kMXFP4:
    case DType::kMXFP4Split: return PackedFormat::kMXFP4;
    default: SF_CHECK(dtype == DType::kQ6_K); return PackedFormat::kQ6_K;
  }
}

// One stored row on its way into column j of a panel.
class ColumnPacker {
 public:
  ColumnPacker(const MatrixView& source, PackedFormat format, const Leaves& leaves)
      : source_(source),
        format_(format),
        layout_(LayoutOf(format)),
        leaves_(leaves),
        leaf_block_(LeafBlocks(leaves)) {}

  void Pack(int64_t row, int j, uint8_t* panel) const {
    for (int v = 0; v < leaves_.count(); ++v) {
      const int64_t begin = leaves_.begin[v];
      const int64_t end = leaves_.begin[v + 1];
      uint8_t* p = panel + leaf_block_[v] / layout_.unit_blocks * layout_.unit_bytes();
      if (IsBlockType(source_.dtype)) {
        PackStoredBlocks(row, begin, end, j, p);
      } else {
        for (int64_t k = begin; k < end; k += kBlock, p += layout_.block_bytes) {
          PackPlain(row, k, std::min<int64_t>(end - k, kBlock), j, p);
        }
      }
    }
  }

 private:
  void PackPlain(int64_t row, int64_t k0, int64_t count, int j, uint8_t* p) const {
    const std::byte* data = source_.At(row, k0);
    const int64_t step = source_.At(row, k0 + 1) - data;
    for (int k = 0; k < count; ++k) {
      const int wide = k * kPanelColumns + j;
      const int pair = (k / 2 * kPanelColumns + j) * 4 + k % 2 * 2;
      switch (source_.dtype) {
        case DType::kF32:
          if (format_ == PackedFormat::kBF16) {
            StoreU16(p + pair, F32ToBF16(LoadAt<float>(data + k * step)));
          } else {
            std::memcpy(p + wide * 4, data + k * step, 4);
          }
          break;
        case DType::kF16:
          if (format_ == PackedFormat::kBF16) {
            StoreU16(p + pair, F32ToBF16(F16ToF32(LoadAt<uint16_t>(data + k * step))));
          } else {
            std::memcpy(p + wide * 2, data + k * step, 2);
          }
          break;
        case DType::kBF16: std::memcpy(p + pair, data + k * step, 2); break;
        default: p[EightBitPlace(k, j)] = static_cast<uint8_t>(data[k]); break;
      }
    }
    if (format_ == PackedFormat::kF8) {
      const float scale =
          source_.scales.data == nullptr ? 1.0f : BlockScaleAt(source_.scales, row, k0);
      std::memcpy(p + 512 + j * 4, &scale, 4);
    }
  }

  void PackStoredBlocks(int64_t row, int64_t begin, int64_t end, int j, uint8_t* p) const {
    const DTypeInfo& info = InfoOf(source_.dtype);
    const std::byte* data = source_.Row(row) + begin / info.block_elements * info.block_bytes;
    StoredBlock block;
    for (int64_t k = begin; k < end;
         k += info.block_elements, data += info.block_bytes, p += layout_.unit_bytes()) {
      ReadStoredBlock(source_.dtype, reinterpret_cast<const uint8_t*>(data), &block);
      if (source_.dtype == DType::kMXFP4Split) block.d = MxScaleAt(source_.scales, row, k);
      PutScales(block, j, p);
      for (int b = 0; b < layout_.unit_blocks; ++b) {
        PutCodes(block.codes + b * kBlock, j, p + layout_.header_bytes + b * layout_.block_bytes);
      }
    }
  }

  void PutScales(const StoredBlock& block, int j, uint8_t* unit) const {
    if (format_ == PackedFormat::kMXFP4) {
      unit[256 + j] = static_cast<uint8_t>(block.d);
      return;
    }
    if (layout_.header_bytes == 0) {
      uint8_t* scales = unit + layout_.block_bytes - (layout_.minima ? 64 : 32);
      StoreU16(scales + j * 2, block.d);
      if (layout_.minima) StoreU16(scales + 32 + j * 2, block.m);
      return;
    }
    StoreU16(unit + j * 2, block.d);
    if (format_ == PackedFormat::kQ6_K) {
      for (int g = 0; g < 16; ++g)
        unit[32 + g * kPanelColumns + j] = static_cast<uint8_t>(block.scales[g]);
      return;
    }
    StoreU16(unit + 32 + j * 2, block.m);
    for (int g = 0; g < 8; ++g) {
      const int scale = block.scales[g];
      const int minimum = block.minima[g];
      unit[64 + g * kPanelColumns + j] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
      const int top = scale >> 4 | (minimum >> 4) << 2;
      unit[192 + g / 2 * kPanelColumns + j] |= static_cast<uint8_t>(top << (g % 2 * 4));
    }
  }

  void PutCodes(const uint8_t* codes, int j, uint8_t* p) const {
    for (int k = 0; k < kBlock; ++k) {
      const uint32_t code = codes[k];
      if (format_ == PackedFormat::kQ8_0) {
        p[EightBitPlace(k, j)] = codes[k];
        continue;
      }
      OrU32(p + (k / 8 * kPanelColumns + j) * 4, (code & 15) << (k % 2 * 16 + k % 8 / 2 * 4));
      if (format_ == PackedFormat::kQ6_K) {
        OrU32(p + 256 + (k / 16 * kPanelColumns + j) * 4, (code >> 4)
                                                              << (k % 2 * 16 + k % 16 / 2 * 2));
      } else if ((code >> 4) != 0) {
        OrU32(p + 256 + j * 4, (code >> 4) << (k % 2 * 16 + k / 2));
      }
    }
  }

  const MatrixView& source_;
  const PackedFormat format_;
  const PackedLayout layout_;
  const Leaves& leaves_;
  const std::vector<int64_t> leaf_block_;
};

Status CheckLeaves(const MatrixView& source, const Leaves& leaves) {
  const auto& begin = leaves.begin;
  const int64_t unit = InfoOf(source.dtype).block_elements;
  if (begin.size() < 2 || begin.front() != 0 || begin.back() != source.cols) {
    return InvalidArgument("leaves must run from 0 to the " + std::to_string(source.cols) +
                           " columns of the matrix");
  }
  for (size_t v = 0; v + 1 < begin.size(); ++v) {
    if (begin[v + 1] <= begin[v]) return InvalidArgument("leaf " + std::to_string(v) + " is empty");
    if (begin[v] % unit != 0 || begin[v + 1] % unit != 0) {
      return InvalidArgument("leaf " + std::to_string(v) + " cuts a block of " +
                             std::to_string(unit) + " " + std::string(NameOf(source.dtype)) +
                             " values");
    }
    if (source.dtype != DType::kF8E4M3 || source.scales.data == nullptr) continue;
    for (int64_t k = begin[v]; k < begin[v + 1]; k += kBlock) {
      const int64_t first = k + source.scales.col_origin;
      const int64_t last = std::min(k + kBlock, begin[v + 1]) - 1 + source.scales.col_origin;
      if (first / BlockScales::kBlock != last / BlockScales::kBlock) {
        return InvalidArgument("a group of 32 columns at " + std::to_string(k) +
                               " crosses a border of F8 scales");
      }
    }
  }
  return OkStatus();
}

// Source bytes between two calls of PackOptions::on_rows.
constexpr int64_t kPartBytes = int64_t{8} << 20;

// Of one panel of 16 columns.
int64_t PanelBytes(PackedFormat format, const Leaves& leaves) {
  const PackedLayout layout = LayoutOf(format);
  return LeafBlockCount(leaves) / layout.unit_blocks * layout.unit_bytes();
}

int64_t PanelCount(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

}  // namespace

int64_t PackedBytes(DType dtype, ActDType act, int64_t n, const Leaves& leaves) {
  SF_CHECK(CanDequantize(dtype));
  return PanelCount(n) * PanelBytes(FormatOf(dtype, act), leaves);
}

Result<PackedMatrix> PackMatrix(const MatrixView& source, const PackOptions& options,
                                ThreadPool& pool) {
  if (!CanDequantize(source.dtype)) {
    return InvalidArgument("no kernel reads " + std::string(NameOf(source.dtype)) + " weights");
  }
  SF_RETURN_IF_ERROR(CheckLeaves(source, options.leaves));
  const int64_t n =
      options.row_order.empty() ? source.rows : static_cast<int64_t>(options.row_order.size());
  for (int32_t row : options.row_order) {
    if (row < 0 || row >= source.rows)
      return InvalidArgument("row order names row " + std::to_string(row));
  }
  PackedMatrix out;
  out.n = n;
  out.k = source.cols;
  out.leaves = options.leaves;
  out.format = FormatOf(source.dtype, options.act);
  out.panel_bytes = PanelBytes(out.format, options.leaves);
  SF_ASSIGN_OR_RETURN(
      out.stream,
      Buffer::Allocate(
          static_cast<size_t>(PackedBytes(source.dtype, options.act, n, options.leaves)),
          "packed weights"));

  const ColumnPacker packer(source, out.format, options.leaves);
  auto* stream = out.stream.as<uint8_t>();
  const int64_t panels = PanelCount(n);
  const int64_t part =
      options.on_rows
          ? std::max<int64_t>(pool.size(), kPartBytes / (source.row_stride_bytes * kPanelColumns))
          : panels;
  for (int64_t first = 0; first < panels; first += part) {
    const int64_t count = std::min(part, panels - first);
    pool.ParallelFor(count, pool.GrainFor(count, 1), [&](int64_t begin, int64_t end, int) {
      for (int64_t column = (first + begin) * kPanelColumns;
           column < std::min((first + end) * kPanelColumns, n); ++column) {
        const int64_t row =
            options.row_order.empty() ? column : options.row_order[static_cast<size_t>(column)];
        packer.Pack(row, static_cast<int>(column % kPanelColumns),
                    stream + column / kPanelColumns * out.panel_bytes);
      }
    });
    if (options.on_rows)
      options.on_rows(first * kPanelColumns, std::min((first + part) * kPanelColumns, n));
  }
  return out;
}

}  // namespace sixfold
