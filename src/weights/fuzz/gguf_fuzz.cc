// The whole input is a GGUF file; what parses must lie inside it and be readable through every
// getter.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "weights/gguf_file.h"

namespace sixfold {
namespace {

void ReadEveryValue(const GgufMetadata& metadata) {
  for (const GgufEntry& entry : metadata.entries()) {
    SF_CHECK(!metadata.Describe(entry, 64).empty());
    SF_CHECK(metadata.TypeName(entry.key).has_value());
    (void)metadata.GetU64(entry.key).ok();
    (void)metadata.GetI64(entry.key).ok();
    (void)metadata.GetF64(entry.key).ok();
    (void)metadata.GetBool(entry.key).ok();
    (void)metadata.GetString(entry.key).ok();
    (void)metadata.GetStrings(entry.key).ok();
    (void)metadata.GetI64s(entry.key).ok();
    (void)metadata.GetF32s(entry.key).ok();
    (void)metadata.GetBools(entry.key).ok();
  }
}

// `file_bytes` beyond the input stands for data that the header may claim.
void Parse(std::span<const std::byte> bytes, uint64_t file_bytes) {
  const auto file = ParseGguf(bytes, file_bytes, "fuzz.gguf");
  if (!file.ok()) {
    SF_CHECK(file.status().code() == StatusCode::kInvalidFile);
    return;
  }
  ReadEveryValue(file->metadata);
  uint64_t end = 0;
  for (const TensorInfo& tensor : file->tensors) {
    SF_CHECK_LE(tensor.offset, file_bytes);
    SF_CHECK_LE(tensor.bytes, file_bytes - tensor.offset);
    SF_CHECK_GE(tensor.offset, end);
    SF_CHECK_LE(tensor.shape.size(), size_t{4});
    end = tensor.offset + tensor.bytes;
  }
}

}  // namespace
}  // namespace sixfold

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  sixfold::Parse(bytes, size);
  sixfold::Parse(bytes, size + (uint64_t{1} << 40));
  return 0;
}
