// Builds GGUF files for tests, true ones and, through the public fields, ones that lie.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weights/gguf_metadata.h"

namespace sixfold {

// Little-endian bytes of a number.
template <typename T>
std::string Le(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

// A GGUF string: its length in 8 bytes, then its bytes.
inline std::string GgufText(std::string_view text) {
  return Le<uint64_t>(text.size()) + std::string(text);
}

struct GgufTestTensor {
  std::string name;
  uint32_t type = 0;           // ggml's number
  std::vector<uint64_t> dims;  // innermost first, as in the file
  std::string data;
  std::optional<uint64_t> offset = {};  // instead of the right one
};

class GgufWriter {
 public:
  GgufWriter& Value(std::string_view key, GgufType type, std::string_view payload) {
    return RawValue(key, static_cast<uint32_t>(type), payload);
  }
  GgufWriter& RawValue(std::string_view key, uint32_t type, std::string_view payload) {
    keys_ += GgufText(key) + Le(type) + std::string(payload);
    ++key_count_;
    return *this;
  }
  GgufWriter& U32(std::string_view key, uint32_t value) {
    return Value(key, GgufType::kU32, Le(value));
  }
  GgufWriter& String(std::string_view key, std::string_view text) {
    return Value(key, GgufType::kString, GgufText(text));
  }
  GgufWriter& Array(std::string_view key, GgufType element, uint64_t count,
                    std::string_view payload) {
    return Value(key, GgufType::kArray,
                 Le(static_cast<uint32_t>(element)) + Le(count) + std::string(payload));
  }
  GgufWriter& Tensor(GgufTestTensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }

  std::string Build() const {
    std::string records;
    std::string data;
    for (const GgufTestTensor& tensor : tensors_) {
      data.resize((data.size() + alignment - 1) / alignment * alignment);
      records += GgufText(tensor.name) + Le(static_cast<uint32_t>(tensor.dims.size()));
      for (const uint64_t extent : tensor.dims) records += Le(extent);
      records += Le(tensor.type) + Le(tensor.offset.value_or(data.size()));
      data += tensor.data;
    }
    std::string out = magic + Le(version) + Le(tensor_count.value_or(tensors_.size())) +
                      Le(key_count.value_or(key_count_)) + keys_ + records;
    if (data.empty()) return out + trailer;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data + trailer;
  }

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;  // used here; the key that says so is the caller's to add
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> key_count;
  std::string trailer;

 private:
  std::string keys_;
  uint64_t key_count_ = 0;
  std::vector<GgufTestTensor> tensors_;
};

}  // namespace sixfold
