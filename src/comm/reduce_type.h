// What reductions add.
#pragma once

#include <cstdint>
#include <string_view>

namespace sixfold {

// Elements that a reduction adds. Sums of kBF16 are added in fp32 and rounded once at the end.
enum class ReduceType : uint8_t { kF32, kF64, kBF16, kI32, kI64 };
int64_t SizeOf(ReduceType type);

}  // namespace sixfold
