// Checks that both formats share: sizes without overflow, unique names, and data that tile their
// section.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "weights/weight_store.h"

namespace sixfold {

// More tensors than this in one model are refused: DeepSeek-V3 in F8 with its scales has about
// 91,000.
inline constexpr uint64_t kMaxTensors = uint64_t{1} << 20;

// Bytes of a tensor, nullopt when the innermost dimension is no whole number of blocks, or the
// product of the non-zero dimensions (times the element size) does not fit in 63 bits.
std::optional<uint64_t> TensorBytes(DType dtype, std::span<const int64_t> shape);

// kInvalidFile naming the first name that repeats.
Status CheckUniqueNames(const std::string& file, std::span<const TensorInfo> tensors);

// Where a file's tensor data lie.
struct DataSection {
  uint64_t begin = 0;  // bytes from the start of the file
  uint64_t end = 0;
  uint64_t alignment = 1;  // of every tensor's offset from `begin`; gaps below it are padding
  bool may_trail = false;  // bytes after the last tensor are allowed
};

// Sorts the tensors by offset and checks that each lies in the section, aligned, that no two
// overlap and that no bytes belong to none. Offsets are from the start of the file, sizes are right
// for type and shape.
Status SortAndCheckExtents(const std::string& file, const DataSection& section,
                           std::vector<TensorInfo>* tensors);

}  // namespace sixfold
