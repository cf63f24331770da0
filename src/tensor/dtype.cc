#include "tensor/dtype.h"

#include <array>

#include "base/check.h"

namespace sixfold {

namespace {

struct Row {
  DType dtype;
  DTypeInfo info;
  int ggml_type;  // -1: no GGUF type number
};

constexpr std::array kRows = {
    Row{DType::kF64, {"F64", 1, 8}, 28},          Row{DType::kF32, {"F32", 1, 4}, 0},
    Row{DType::kF16, {"F16", 1, 2}, 1},           Row{DType::kBF16, {"BF16", 1, 2}, 30},
    Row{DType::kF8E4M3, {"F8_E4M3", 1, 1}, -1},   Row{DType::kF8E5M2, {"F8_E5M2", 1, 1}, -1},
    Row{DType::kI64, {"I64", 1, 8}, 27},          Row{DType::kU64, {"U64", 1, 8}, -1},
    Row{DType::kI32, {"I32", 1, 4}, 26},          Row{DType::kU32, {"U32", 1, 4}, -1},
    Row{DType::kI16, {"I16", 1, 2}, 25},          Row{DType::kU16, {"U16", 1, 2}, -1},
    Row{DType::kI8, {"I8", 1, 1}, 24},            Row{DType::kU8, {"U8", 1, 1}, -1},
    Row{DType::kBool, {"BOOL", 1, 1}, -1},        Row{DType::kQ4_0, {"Q4_0", 32, 18}, 2},
    Row{DType::kQ4_1, {"Q4_1", 32, 20}, 3},       Row{DType::kQ5_0, {"Q5_0", 32, 22}, 6},
    Row{DType::kQ5_1, {"Q5_1", 32, 24}, 7},       Row{DType::kQ8_0, {"Q8_0", 32, 34}, 8},
    Row{DType::kQ8_1, {"Q8_1", 32, 36}, 9},       Row{DType::kQ2_K, {"Q2_K", 256, 84}, 10},
    Row{DType::kQ3_K, {"Q3_K", 256, 110}, 11},    Row{DType::kQ4_K, {"Q4_K", 256, 144}, 12},
    Row{DType::kQ5_K, {"Q5_K", 256, 176}, 13},    Row{DType::kQ6_K, {"Q6_K", 256, 210}, 14},
    Row{DType::kQ8_K, {"Q8_K", 256, 292}, 15},    Row{DType::kIQ2_XXS, {"IQ2_XXS", 256, 66}, 16},
    Row{DType::kIQ2_XS, {"IQ2_XS", 256, 74}, 17}, Row{DType::kIQ3_XXS, {"IQ3_XXS", 256, 98}, 18},
    Row{DType::kIQ1_S, {"IQ1_S", 256, 50}, 19},   Row{DType::kIQ4_NL, {"IQ4_NL", 32, 18}, 20},
    Row{DType::kIQ3_S, {"IQ3_S", 256, 110}, 21},  Row{DType::kIQ2_S, {"IQ2_S", 256, 82}, 22},
    Row{DType::kIQ4_XS, {"IQ4_XS", 256, 136}, 23}, Row{DType::kIQ1_M, {"IQ1_M", 256, 56}, 29},
    Row{DType::kTQ1_0, {"TQ1_0", 256, 54}, 34},   Row{DType::kTQ2_0, {"TQ2_0", 256, 66}, 35},
    Row{DType::kMXFP4, {"MXFP4", 32, 17}, 39},    Row{DType::kMXFP4Split, {"MXFP4_SPLIT", 32, 16}, -1},
};

}  // namespace

const DTypeInfo& InfoOf(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  SF_CHECK_LT(index, kRows.size());
  SF_CHECK(kRows[index].dtype == dtype);
  return kRows[index].info;
}

std::optional<DType> DTypeFromSafetensors(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.info.name == name && row.info.block_elements == 1) return row.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromGgml(uint32_t type) {
  for (const Row& row : kRows) {
    if (row.ggml_type >= 0 && static_cast<uint32_t>(row.ggml_type) == type) return row.dtype;
  }
  return std::nullopt;
}

bool CanDequantize(DType dtype) {
  switch (dtype) {
    case DType::kF32: case DType::kF16: case DType::kBF16: case DType::kF8E4M3:
    case DType::kQ4_0: case DType::kQ4_1: case DType::kQ5_0: case DType::kQ5_1: case DType::kQ8_0:
    case DType::kQ4_K: case DType::kQ5_K: case DType::kQ6_K: case DType::kMXFP4: case DType::kMXFP4Split:
      return true;
    default:
      return false;
  }
}

}  // namespace sixfold
