// The header of a safetensors file and the index of a sharded model, as pure functions over bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "weights/weight_store.h"

namespace sixfold {

// The reference implementation's bound on the length of a header, in bytes.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr size_t kMaxSafetensorsDims = 8;

struct SafetensorsFile {
  std::vector<TensorInfo> tensors;  // by offset; TensorInfo::file is 0
  std::map<std::string, std::string> metadata;
};

// `head` is the file's beginning, at least its header if that lies inside the file; `file_bytes`
// the size of the whole file; `file` its name for messages. Errors are kInvalidFile.
Result<SafetensorsFile> ParseSafetensors(std::span<const std::byte> head, uint64_t file_bytes,
                                         const std::string& file);

struct ShardIndex {
  std::vector<std::string> files;                        // plain names, in order of name
  std::unordered_map<std::string, uint32_t> weight_map;  // tensor name → index into files
};

// model.safetensors.index.json: {"metadata": {…}, "weight_map": {tensor: file}}. Errors are
// kInvalidFile.
Result<ShardIndex> ParseShardIndex(std::span<const std::byte> text, const std::string& file);

}  // namespace sixfold
