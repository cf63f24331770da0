#include "weights/gguf_metadata.h"

#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "weights/error_text.h"
#include "weights/gguf_file.h"

namespace sixfold {

namespace {

template <typename T>
T Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

bool IsInteger(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kU16:
    case GgufType::kI16:
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kU64:
    case GgufType::kI64: return true;
    default: return false;
  }
}

bool IsFloat(GgufType type) { return type == GgufType::kF32 || type == GgufType::kF64; }

// nullopt: a u64 above the range of int64.
std::optional<int64_t> LoadInteger(GgufType type, const std::byte* data) {
  switch (type) {
    case GgufType::kU8: return Load<uint8_t>(data);
    case GgufType::kI8: return Load<int8_t>(data);
    case GgufType::kU16: return Load<uint16_t>(data);
    case GgufType::kI16: return Load<int16_t>(data);
    case GgufType::kU32: return Load<uint32_t>(data);
    case GgufType::kI32: return Load<int32_t>(data);
    case GgufType::kI64: return Load<int64_t>(data);
    default: break;
  }
  const auto value = Load<uint64_t>(data);
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(value);
}

double LoadNumber(GgufType type, const std::byte* data) {
  if (type == GgufType::kF32) return Load<float>(data);
  if (type == GgufType::kF64) return Load<double>(data);
  if (type == GgufType::kU64) return static_cast<double>(Load<uint64_t>(data));
  return static_cast<double>(*LoadInteger(type, data));
}

std::string_view LoadString(const std::byte* data) {
  return {reinterpret_cast<const char*>(data) + 8, Load<uint64_t>(data)};
}

std::string FullTypeName(const GgufEntry& entry) {
  if (entry.type != GgufType::kArray) return GgufTypeName(entry.type);
  return std::string("array of ") + GgufTypeName(entry.element);
}

GgufType ElementType(const GgufEntry& entry) {
  return entry.type == GgufType::kArray ? entry.element : entry.type;
}

std::string OneValue(GgufType type, const std::byte* data) {
  if (type == GgufType::kString) return Quote(LoadString(data));
  if (type == GgufType::kBool) return Load<uint8_t>(data) != 0 ? "true" : "false";
  if (type == GgufType::kU64) return std::to_string(Load<uint64_t>(data));
  if (IsInteger(type)) return std::to_string(*LoadInteger(type, data));
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", LoadNumber(type, data));
  return text;
}

}  // namespace

GgufMetadata::GgufMetadata(std::span<const std::byte> bytes, std::string file,
                           std::vector<GgufEntry> entries)
    : bytes_(bytes), file_(std::move(file)), entries_(std::move(entries)) {
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].key, i);
  SF_CHECK_EQ(index_.size(), entries_.size());
}

const GgufEntry* GgufMetadata::Find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second];
}

std::optional<std::string> GgufMetadata::TypeName(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return std::nullopt;
  return FullTypeName(*entry);
}

uint64_t GgufMetadata::Count(std::string_view key) const {
  const GgufEntry* entry = Find(key);
  return entry == nullptr ? 0 : entry->count;
}

Status GgufMetadata::Error(std::string_view key, const std::string& what) const {
  return InvalidFile(file_ + ": key " + Quote(key) + " " + what);
}

Status GgufMetadata::WrongType(const GgufEntry& entry, const char* wanted) const {
  return Error(entry.key, "holds " + FullTypeName(entry) + ", " + wanted + " was expected");
}

Result<const GgufEntry*> GgufMetadata::FindOf(std::string_view key, const char* wanted) const {
  const GgufEntry* entry = Find(key);
  if (entry == nullptr) return Error(key, std::string("is missing, ") + wanted + " was expected");
  return entry;
}

Result<const GgufEntry*> GgufMetadata::FindArrayOf(std::string_view key, const char* wanted) const {
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindOf(key, wanted));
  if (entry->count > kMaxArrayElements) {
    return Error(key, "is an array of " + std::to_string(entry->count) + " elements, at most " +
                          std::to_string(kMaxArrayElements) + " are read");
  }
  return entry;
}

Result<uint64_t> GgufMetadata::GetU64(std::string_view key) const {
  constexpr const char* kWanted = "a whole number from 0";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindOf(key, kWanted));
  if (!IsInteger(entry->type)) return WrongType(*entry, kWanted);
  if (entry->type == GgufType::kU64) return Load<uint64_t>(bytes_.data() + entry->offset);
  const int64_t value = *LoadInteger(entry->type, bytes_.data() + entry->offset);
  if (value < 0)
    return Error(key, "is " + std::to_string(value) + ", " + kWanted + " was expected");
  return static_cast<uint64_t>(value);
}

Result<int64_t> GgufMetadata::GetI64(std::string_view key) const {
  constexpr const char* kWanted = "a whole number";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindOf(key, kWanted));
  if (!IsInteger(entry->type)) return WrongType(*entry, kWanted);
  const auto value = LoadInteger(entry->type, bytes_.data() + entry->offset);
  if (!value.has_value()) return Error(key, "is above the range of a signed 64-bit number");
  return *value;
}

Result<double> GgufMetadata::GetF64(std::string_view key) const {
  constexpr const char* kWanted = "a number";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindOf(key, kWanted));
  if (!IsInteger(entry->type) && !IsFloat(entry->type)) return WrongType(*entry, kWanted);
  return LoadNumber(entry->type, bytes_.data() + entry->offset);
}

Result<bool> GgufMetadata::GetBool(std::string_view key) const {
  constexpr const char* kWanted = "a bool";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindOf(key, kWanted));
  if (entry->type != GgufType::kBool) return WrongType(*entry, kWanted);
  return Load<uint8_t>(bytes_.data() + entry->offset) != 0;
}

Result<std::string_view> GgufMetadata::GetString(std::string_view key) const {
  constexpr const char* kWanted = "a string";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindOf(key, kWanted));
  if (entry->type != GgufType::kString) return WrongType(*entry, kWanted);
  return LoadString(bytes_.data() + entry->offset);
}

Result<uint64_t> GgufMetadata::GetU64Or(std::string_view key, uint64_t fallback) const {
  return Has(key) ? GetU64(key) : fallback;
}

Result<int64_t> GgufMetadata::GetI64Or(std::string_view key, int64_t fallback) const {
  return Has(key) ? GetI64(key) : fallback;
}

Result<double> GgufMetadata::GetF64Or(std::string_view key, double fallback) const {
  return Has(key) ? GetF64(key) : fallback;
}

Result<bool> GgufMetadata::GetBoolOr(std::string_view key, bool fallback) const {
  return Has(key) ? GetBool(key) : fallback;
}

Result<std::string_view> GgufMetadata::GetStringOr(std::string_view key,
                                                   std::string_view fallback) const {
  return Has(key) ? GetString(key) : fallback;
}

Result<std::vector<std::string_view>> GgufMetadata::GetStrings(std::string_view key) const {
  constexpr const char* kWanted = "an array of strings";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindArrayOf(key, kWanted));
  if (ElementType(*entry) != GgufType::kString && entry->count > 0)
    return WrongType(*entry, kWanted);
  std::vector<std::string_view> out;
  out.reserve(entry->count);
  const std::byte* at = bytes_.data() + entry->offset;
  for (uint64_t i = 0; i < entry->count; ++i) {
    out.push_back(LoadString(at));
    at += 8 + out.back().size();
  }
  return out;
}

Result<std::vector<int64_t>> GgufMetadata::GetI64s(std::string_view key) const {
  constexpr const char* kWanted = "an array of whole numbers";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindArrayOf(key, kWanted));
  const GgufType type = ElementType(*entry);
  if (!IsInteger(type) && entry->count > 0) return WrongType(*entry, kWanted);
  std::vector<int64_t> out;
  out.reserve(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    const auto value = LoadInteger(type, bytes_.data() + entry->offset + i * GgufTypeBytes(type));
    if (!value.has_value()) {
      return Error(
          key, "element " + std::to_string(i) + " is above the range of a signed 64-bit number");
    }
    out.push_back(*value);
  }
  return out;
}

Result<std::vector<float>> GgufMetadata::GetF32s(std::string_view key) const {
  constexpr const char* kWanted = "an array of numbers";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindArrayOf(key, kWanted));
  const GgufType type = ElementType(*entry);
  if (!IsInteger(type) && !IsFloat(type) && entry->count > 0) return WrongType(*entry, kWanted);
  std::vector<float> out;
  out.reserve(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    const std::byte* at = bytes_.data() + entry->offset + i * GgufTypeBytes(type);
    // Straight for F32, so that a NaN keeps its bits.
    out.push_back(type == GgufType::kF32 ? Load<float>(at)
                                         : static_cast<float>(LoadNumber(type, at)));
  }
  return out;
}

Result<std::vector<bool>> GgufMetadata::GetBools(std::string_view key) const {
  constexpr const char* kWanted = "an array of bools";
  SF_ASSIGN_OR_RETURN(const GgufEntry* entry, FindArrayOf(key, kWanted));
  if (ElementType(*entry) != GgufType::kBool && entry->count > 0) return WrongType(*entry, kWanted);
  std::vector<bool> out;
  out.reserve(entry->count);
  for (uint64_t i = 0; i < entry->count; ++i) {
    out.push_back(Load<uint8_t>(bytes_.data() + entry->offset + i) != 0);
  }
  return out;
}

std::span<const std::byte> GgufMetadata::Raw(const GgufEntry& entry) const {
  SF_CHECK_LE(entry.offset, bytes_.size());
  SF_CHECK_LE(entry.bytes, bytes_.size() - entry.offset);
  return bytes_.subspan(entry.offset, entry.bytes);
}

std::string GgufMetadata::Describe(const GgufEntry& entry, size_t max_chars) const {
  const std::byte* at = bytes_.data() + entry.offset;
  if (entry.type != GgufType::kArray) return OneValue(entry.type, at);
  std::string out = "[";
  for (uint64_t i = 0; i < entry.count; ++i) {
    if (i > 0) out += ", ";
    if (entry.element == GgufType::kArray || out.size() >= max_chars) {
      out += "...";
      break;
    }
    out += OneValue(entry.element, at);
    at += entry.element == GgufType::kString ? 8 + LoadString(at).size()
                                             : GgufTypeBytes(entry.element);
  }
  return out + "] (" + std::to_string(entry.count) + " " + GgufTypeName(entry.element) + ")";
}

}  // namespace sixfold
