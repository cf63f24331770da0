// Writes a safetensors file: `logits --output`, `dump --output`, and the files of tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace sixfold {

struct OutputTensor {
  std::string name;
  DType dtype = DType::kF32;        // plain types only
  std::vector<int64_t> shape;       // outermost first
  std::span<const std::byte> data;  // little-endian, exactly the shape's bytes
};

// The file appears under `path` complete or not at all: written beside it and renamed (a target
// that is no regular file, such as /dev/stdout, is written straight). kInvalidArgument: a name
// twice, a block type, data that do not fit the shape, or a path that cannot be written; the
// message says which and why.
Status WriteSafetensors(const std::filesystem::path& path, std::span<const OutputTensor> tensors,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace sixfold
