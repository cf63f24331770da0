// Element types of tensors in files and in memory. Block types hold several elements in one unit of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sixfold {

// Float, integer and block types that safetensors and GGUF files may hold. A model may use only those for which
// CanDequantize() is true; the rest is known by size, so that any well-formed file can be inspected.
enum class DType : uint8_t {
  kF64, kF32, kF16, kBF16, kF8E4M3, kF8E5M2,
  kI64, kU64, kI32, kU32, kI16, kU16, kI8, kU8, kBool,
  kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ8_1,
  kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kQ8_K,
  kIQ2_XXS, kIQ2_XS, kIQ3_XXS, kIQ1_S, kIQ4_NL, kIQ3_S, kIQ2_S, kIQ4_XS, kIQ1_M,
  kTQ1_0, kTQ2_0, kMXFP4,
  kMXFP4Split,  // codes as GPT-OSS stores them, E8M0 scales in a tensor of their own; no file says so: weights/ makes the view
};

struct DTypeInfo {
  std::string_view name;   // as printed: "BF16", "Q4_1"
  int block_elements;      // elements in one unit along the innermost dimension; 1 for plain types
  int block_bytes;         // bytes of that unit
};

const DTypeInfo& InfoOf(DType dtype);
inline std::string_view NameOf(DType dtype) { return InfoOf(dtype).name; }
inline bool IsBlockType(DType dtype) { return InfoOf(dtype).block_elements > 1; }

// "BF16", "F8_E4M3": the names in a safetensors header.
std::optional<DType> DTypeFromSafetensors(std::string_view name);
// ggml's type number in a GGUF tensor record.
std::optional<DType> DTypeFromGgml(uint32_t type);
// True for the types whose values the kernels can read: F32 F16 BF16 F8_E4M3 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K MXFP4
// (both forms).
bool CanDequantize(DType dtype);

}  // namespace sixfold
