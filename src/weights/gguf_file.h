// The header of a GGUF file (versions 2 and 3, little-endian), as a pure function over bytes.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "weights/gguf_metadata.h"
#include "weights/weight_store.h"

namespace sixfold {

struct GgufFile {
  GgufMetadata metadata;            // borrows the bytes
  std::vector<TensorInfo> tensors;  // by offset; TensorInfo::file is 0
  uint32_t version = 0;
  uint64_t alignment = 32;
  uint64_t data_begin = 0;  // bytes from the start of the file
};

// `head` is the file's beginning, at least its header if that lies inside the file; `file_bytes`
// the size of the whole file; `file` its name for messages. Errors are kInvalidFile. Allocates at
// most about 100 bytes for each record that really is in the bytes.
Result<GgufFile> ParseGguf(std::span<const std::byte> head, uint64_t file_bytes,
                           const std::string& file);

// True when the bytes begin with "GGUF" in either byte order.
bool LooksLikeGguf(std::span<const std::byte> head);

// Bytes of one value; 0 for strings and arrays, whose size varies.
uint64_t GgufTypeBytes(GgufType type);
const char* GgufTypeName(GgufType type);

}  // namespace sixfold
