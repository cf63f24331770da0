// The whole input is a safetensors file, the JSON of its header, and the index of a sharded model.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/check.h"
#include "weights/safetensors_file.h"

namespace sixfold {
namespace {

void Parse(std::span<const std::byte> bytes, uint64_t file_bytes) {
  const auto file = ParseSafetensors(bytes, file_bytes, "fuzz.safetensors");
  if (!file.ok()) {
    SF_CHECK(file.status().code() == StatusCode::kInvalidFile);
    return;
  }
  uint64_t end = 0;
  for (const TensorInfo& tensor : file->tensors) {
    SF_CHECK_LE(tensor.offset, file_bytes);
    SF_CHECK_LE(tensor.bytes, file_bytes - tensor.offset);
    SF_CHECK(end == 0 || tensor.offset == end);
    end = tensor.offset + tensor.bytes;
  }
  SF_CHECK(file->tensors.empty() || end == file_bytes);
}

void ParseIndex(std::span<const std::byte> bytes) {
  const auto index = ParseShardIndex(bytes, "fuzz.json");
  if (!index.ok()) return;
  SF_CHECK(!index->files.empty());
  for (const auto& [tensor, file] : index->weight_map) SF_CHECK_LT(file, index->files.size());
  for (const std::string& name : index->files) SF_CHECK_EQ(name.find('/'), std::string::npos);
}

}  // namespace
}  // namespace sixfold

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  sixfold::Parse(bytes, size);
  sixfold::Parse(bytes, size + (uint64_t{1} << 40));
  sixfold::ParseIndex(bytes);
  // Mutations seldom keep the length right: the input as the JSON of a header, with 16 bytes of
  // data.
  const uint64_t length = size;
  std::string framed(sizeof(length), '\0');
  std::memcpy(framed.data(), &length, sizeof(length));
  framed.append(reinterpret_cast<const char*>(data), size).append(16, 'd');
  sixfold::Parse(std::as_bytes(std::span(framed)), framed.size());
  return 0;
}
