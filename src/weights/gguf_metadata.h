// The key/value section of a GGUF file. Values stay in the file's bytes and are decoded when asked
// for, so that a file cannot make us hold more than a small entry per key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace sixfold {

// Value types by the numbers that the format gives them.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One value whose extent the parser has checked. `offset` is that of the first payload byte: the
// number itself, the length of a string, or the first element of an array (behind its type and
// count).
struct GgufEntry {
  std::string_view key;
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array
  uint64_t count = 1;                // elements of an array
  uint64_t offset = 0;
  uint64_t bytes = 0;  // from there to the end of the value
};

// Read-only and thread-safe. Borrows the file's bytes: the WeightStore that gave it must outlive it
// and every view.
//
// Errors: a key that is absent or holds another kind of value is kInvalidFile; the message names
// the file, the key, what was wanted and what was found. `…Or` gives the fallback when the key is
// absent, and still refuses a wrong type. Integers of every width convert to U64 and I64 when the
// value fits; F64 takes floats and integers of every width.
class GgufMetadata {
 public:
  // Arrays longer than this are refused by the array getters; the largest vocabularies known are
  // below 2^19.
  static constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;

  GgufMetadata() = default;
  // For the parser: every entry lies inside `bytes`, and no key repeats.
  GgufMetadata(std::span<const std::byte> bytes, std::string file, std::vector<GgufEntry> entries);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // In the order of the file.
  std::span<const GgufEntry> entries() const { return entries_; }
  // "u32", "string", "array of f32"; nullopt when absent.
  std::optional<std::string> TypeName(std::string_view key) const;
  // Elements of an array, 1 for anything else, 0 when absent.
  uint64_t Count(std::string_view key) const;

  Result<uint64_t> GetU64(std::string_view key) const;
  Result<int64_t> GetI64(std::string_view key) const;
  Result<double> GetF64(std::string_view key) const;
  Result<bool> GetBool(std::string_view key) const;
  Result<std::string_view> GetString(std::string_view key) const;

  Result<uint64_t> GetU64Or(std::string_view key, uint64_t fallback) const;
  Result<int64_t> GetI64Or(std::string_view key, int64_t fallback) const;
  Result<double> GetF64Or(std::string_view key, double fallback) const;
  Result<bool> GetBoolOr(std::string_view key,
                         bool fallback) const;  // NOLINT: a value, not a switch
  Result<std::string_view> GetStringOr(std::string_view key, std::string_view fallback) const;

  // A scalar reads as an array of one (`head_count_kv` is written either way).
  Result<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  Result<std::vector<int64_t>> GetI64s(std::string_view key) const;
  Result<std::vector<float>> GetF32s(std::string_view key) const;
  Result<std::vector<bool>> GetBools(std::string_view key) const;

  // The payload as it lies in the file.
  std::span<const std::byte> Raw(const GgufEntry& entry) const;
  // The value as one short line for people: numbers, quoted text, the first elements of an array.
  std::string Describe(const GgufEntry& entry, size_t max_chars) const;

 private:
  const GgufEntry* Find(std::string_view key) const;
  Result<const GgufEntry*> FindOf(std::string_view key, const char* wanted) const;
  Result<const GgufEntry*> FindArrayOf(std::string_view key, const char* wanted) const;
  Status WrongType(const GgufEntry& entry, const char* wanted) const;
  Status Error(std::string_view key, const std::string& what) const;

  std::span<const std::byte> bytes_;
  std::string file_;
  std::vector<GgufEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace sixfold
