#include "weights/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "weights/error_text.h"
#include "weights/tensor_layout.h"

namespace sixfold {

static_assert(std::endian::native == std::endian::little,
              "values are read from the file as they lie");

uint64_t GgufTypeBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: return 0;
  }
  return 0;
}

const char* GgufTypeName(GgufType type) {
  switch (type) {
    case GgufType::kU8: return "u8";
    case GgufType::kI8: return "i8";
    case GgufType::kU16: return "u16";
    case GgufType::kI16: return "i16";
    case GgufType::kU32: return "u32";
    case GgufType::kI32: return "i32";
    case GgufType::kF32: return "f32";
    case GgufType::kBool: return "bool";
    case GgufType::kString: return "string";
    case GgufType::kArray: return "array";
    case GgufType::kU64: return "u64";
    case GgufType::kI64: return "i64";
    case GgufType::kF64: return "f64";
  }
  return "unknown";
}

bool LooksLikeGguf(std::span<const std::byte> head) {
  return head.size() >= 4 &&
         (std::memcmp(head.data(), "GGUF", 4) == 0 || std::memcmp(head.data(), "FUGG", 4) == 0);
}

namespace {

constexpr uint64_t kMaxKeys = uint64_t{1} << 20;
constexpr uint64_t kMaxNameBytes = 65535;  // the format's bound on keys
constexpr uint64_t kMaxTensorSection = uint64_t{128}
                                       << 20;  // names are copied, so this bounds them together
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr int kMaxArrayDepth = 4;  // arrays in arrays are checked, though no getter reads them
constexpr uint32_t kMaxDims = 4;
// The smallest records: an empty key, its type, a one-byte value; an empty name, the count of
// dimensions, type, offset.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

// Reads forward through the header; nothing moves past its end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  template <typename T>
  [[nodiscard]] bool Read(T* value) {
    if (left() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  [[nodiscard]] bool Skip(uint64_t count) {
    if (left() < count) return false;
    position_ += count;
    return true;
  }

  // A length in 8 bytes, then that many bytes.
  [[nodiscard]] bool ReadString(std::string_view* text) {
    uint64_t length = 0;
    if (!Read(&length) || left() < length) return false;
    *text = {reinterpret_cast<const char*>(bytes_.data()) + position_, length};
    position_ += length;
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> head, uint64_t file_bytes, const std::string& file)
      : head_(head), file_bytes_(file_bytes), file_(file), cursor_(head) {}

  Result<GgufFile> Parse() {
    SF_RETURN_IF_ERROR(ReadPreamble());
    SF_RETURN_IF_ERROR(ReadMetadata());
    SF_RETURN_IF_ERROR(ReadAlignment());
    SF_RETURN_IF_ERROR(ReadTensors());
    SF_RETURN_IF_ERROR(PlaceTensors());
    return std::move(result_);
  }

 private:
  Status Error(const std::string& what) const { return InvalidFile(file_ + ": " + what); }

  Status Truncated(const std::string& where) const {
    return Error(where + " goes past the end of the file (" + std::to_string(file_bytes_) +
                 " bytes), from byte " + std::to_string(cursor_.position()) +
                 ": it is truncated or its header is wrong");
  }

  Status ReadPreamble() {
    const std::string_view magic(reinterpret_cast<const char*>(head_.data()),
                                 std::min<size_t>(head_.size(), 4));
    if (magic == "FUGG") return BigEndian();
    if (magic != "GGUF" || !cursor_.Skip(4)) {
      return Error("begins with " + Quote(magic) + ", 'GGUF' was expected: is it a GGUF file?");
    }
    if (!cursor_.Read(&result_.version)) return Truncated("the version");
    const uint32_t version = result_.version;
    if (version != 0 && (version & 0xffff) == 0) return BigEndian();
    if (version != 2 && version != 3) {
      return Error("is GGUF version " + std::to_string(version) +
                   ", versions 2 and 3 are read: convert it with a current converter");
    }
    if (!cursor_.Read(&tensor_count_)) return Truncated("the count of tensors");
    if (!cursor_.Read(&key_count_)) return Truncated("the count of keys");
    SF_RETURN_IF_ERROR(CheckCount("keys", key_count_, kMaxKeys, kMinKeyBytes));
    return CheckCount("tensors", tensor_count_, kMaxTensors, kMinTensorBytes);
  }

  Status BigEndian() const {
    return Error("is a big-endian GGUF file, little-endian was expected: convert it");
  }

  // A count is believed only as far as the rest of the file could hold that many records.
  Status CheckCount(const char* what, uint64_t count, uint64_t most, uint64_t min_bytes) const {
    if (count > cursor_.left() / min_bytes) {
      return Error("claims " + std::to_string(count) + " " + what + ", the " +
                   std::to_string(cursor_.left()) + " bytes left hold at most " +
                   std::to_string(cursor_.left() / min_bytes));
    }
    if (count > most) {
      return Error("has " + std::to_string(count) + " " + what + ", at most " +
                   std::to_string(most) + " are read");
    }
    return OkStatus();
  }

  Status ReadMetadata() {
    std::vector<GgufEntry> entries;
    std::unordered_set<std::string_view> keys;
    for (uint64_t i = 0; i < key_count_; ++i) {
      SF_ASSIGN_OR_RETURN(const GgufEntry entry, ReadEntry(i));
      if (!keys.insert(entry.key).second)
        return Error("key " + Quote(entry.key) + " appears twice");
      entries.push_back(entry);
    }
    result_.metadata = GgufMetadata(head_, file_, std::move(entries));
    return OkStatus();
  }

  Result<GgufEntry> ReadEntry(uint64_t number) {
    SF_ASSIGN_OR_RETURN(GgufEntry entry, ReadValue(number));
    entry.bytes = cursor_.position() - entry.offset;
    return entry;
  }

  Result<GgufEntry> ReadValue(uint64_t number) {
    GgufEntry entry;
    const std::string which = "key number " + std::to_string(number);
    if (!cursor_.ReadString(&entry.key)) return Truncated(which);
    if (entry.key.size() > kMaxNameBytes) {
      return Error(which + " has " + std::to_string(entry.key.size()) + " bytes, at most " +
                   std::to_string(kMaxNameBytes) + " are allowed");
    }
    SF_ASSIGN_OR_RETURN(entry.type, ReadType(entry.key));
    if (entry.type == GgufType::kArray) {
      SF_RETURN_IF_ERROR(ReadArrayHead(entry.key, &entry.element, &entry.count));
      entry.offset = cursor_.position();
      SF_RETURN_IF_ERROR(SkipElements(entry.key, entry.element, entry.count, 1));
      return entry;
    }
    entry.offset = cursor_.position();
    if (entry.type == GgufType::kBool) {
      uint8_t value = 0;
      if (!cursor_.Read(&value)) return Truncated("the value of key " + Quote(entry.key));
      if (value > 1) {
        return Error("key " + Quote(entry.key) + " is a bool of value " + std::to_string(value) +
                     ", 0 or 1 was expected");
      }
      return entry;
    }
    SF_RETURN_IF_ERROR(SkipElements(entry.key, entry.type, 1, 0));
    return entry;
  }

  Result<GgufType> ReadType(std::string_view key) {
    uint32_t type = 0;
    if (!cursor_.Read(&type)) return Truncated("the type of key " + Quote(key));
    if (type > static_cast<uint32_t>(GgufType::kF64)) {
      return Error("key " + Quote(key) + " has value type " + std::to_string(type) +
                   ", which is not known (0 to 12 are)");
    }
    return static_cast<GgufType>(type);
  }

  Status ReadArrayHead(std::string_view key, GgufType* element, uint64_t* count) {
    SF_ASSIGN_OR_RETURN(*element, ReadType(key));
    if (!cursor_.Read(count)) return Truncated("the array of key " + Quote(key));
    // A string has at least its length, an array its type and count.
    const uint64_t fixed = GgufTypeBytes(*element);
    const uint64_t min_bytes = fixed != 0 ? fixed : *element == GgufType::kString ? 8 : 12;
    if (*count > cursor_.left() / min_bytes) {
      return Error("key " + Quote(key) + " claims an array of " + std::to_string(*count) + " " +
                   GgufTypeName(*element) + ", the " + std::to_string(cursor_.left()) +
                   " bytes left hold at most " + std::to_string(cursor_.left() / min_bytes));
    }
    return OkStatus();
  }

  // `depth`: arrays around these elements.
  Status SkipElements(std::string_view key, GgufType type, uint64_t count, int depth) {
    if (const uint64_t bytes = GgufTypeBytes(type); bytes != 0) {
      // count * bytes fits: ReadArrayHead compared the count with the bytes left.
      if (!cursor_.Skip(count * bytes)) return Truncated("the value of key " + Quote(key));
      return OkStatus();
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::kString) {
        std::string_view text;
        if (!cursor_.ReadString(&text)) return Truncated("a string of key " + Quote(key));
        continue;
      }
      if (depth >= kMaxArrayDepth) {
        return Error("key " + Quote(key) + " nests arrays deeper than " +
                     std::to_string(kMaxArrayDepth));
      }
      GgufType element = GgufType::kU8;
      uint64_t inner = 0;
      SF_RETURN_IF_ERROR(ReadArrayHead(key, &element, &inner));
      SF_RETURN_IF_ERROR(SkipElements(key, element, inner, depth + 1));
    }
    return OkStatus();
  }

  Status ReadAlignment() {
    SF_ASSIGN_OR_RETURN(result_.alignment, result_.metadata.GetU64Or("general.alignment", 32));
    if (!std::has_single_bit(result_.alignment) || result_.alignment > kMaxAlignment) {
      return Error("key 'general.alignment' is " + std::to_string(result_.alignment) +
                   ", a power of two up to " + std::to_string(kMaxAlignment) + " was expected");
    }
    return OkStatus();
  }

  Status ReadTensors() {
    const uint64_t begin = cursor_.position();
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      SF_ASSIGN_OR_RETURN(TensorInfo tensor, ReadTensor(i));
      if (cursor_.position() - begin > kMaxTensorSection) {
        return Error("has tensor records of more than " + std::to_string(kMaxTensorSection) +
                     " bytes");
      }
      result_.tensors.push_back(std::move(tensor));
    }
    return CheckUniqueNames(file_, result_.tensors);
  }

  // The offset stays relative to the data section, which begins behind the last record.
  Result<TensorInfo> ReadTensor(uint64_t number) {
    const std::string which = "the record of tensor number " + std::to_string(number);
    std::string_view name;
    if (!cursor_.ReadString(&name)) return Truncated(which);
    if (name.size() > kMaxNameBytes) {
      return Error(which + " has a name of " + std::to_string(name.size()) + " bytes, at most " +
                   std::to_string(kMaxNameBytes) + " are allowed");
    }
    TensorInfo tensor{.name = std::string(name)};
    const std::string prefix = "tensor " + Quote(name);
    uint32_t dims = 0;
    if (!cursor_.Read(&dims)) return Truncated(which);
    if (dims > kMaxDims) {
      return Error(prefix + " has " + std::to_string(dims) + " dimensions, at most 4 are allowed");
    }
    tensor.shape.resize(dims);
    for (uint32_t d = 0; d < dims; ++d) {
      uint64_t extent = 0;
      if (!cursor_.Read(&extent)) return Truncated(which);
      if (extent > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Error(prefix + " has dimension " + std::to_string(extent) +
                     ", which is out of range");
      }
      tensor.shape[dims - 1 - d] =
          static_cast<int64_t>(extent);  // the file has the innermost first
    }
    uint32_t type = 0;
    if (!cursor_.Read(&type) || !cursor_.Read(&tensor.offset)) return Truncated(which);
    const auto dtype = DTypeFromGgml(type);
    if (!dtype.has_value()) {
      return Error(prefix + " has ggml type number " + std::to_string(type) +
                   ", which is not known");
    }
    tensor.dtype = *dtype;
    SF_RETURN_IF_ERROR(SizeTensor(&tensor));
    return tensor;
  }

  Status SizeTensor(TensorInfo* tensor) const {
    const int block = InfoOf(tensor->dtype).block_elements;
    const int64_t cols = tensor->shape.empty() ? 1 : tensor->shape.back();
    if (cols % block != 0) {
      return Error(DescribeTensor(*tensor) + " has an innermost dimension of " +
                   std::to_string(cols) + ", a multiple of its block, " + std::to_string(block) +
                   ", was expected");
    }
    const auto bytes = TensorBytes(tensor->dtype, tensor->shape);
    if (!bytes.has_value()) return Error(DescribeTensor(*tensor) + " has a size that overflows");
    tensor->bytes = *bytes;
    return OkStatus();
  }

  // Turns offsets into those from the start of the file and checks them.
  Status PlaceTensors() {
    const uint64_t mask = result_.alignment - 1;
    result_.data_begin = (cursor_.position() + mask) & ~mask;
    if (result_.tensors.empty()) return OkStatus();
    if (result_.data_begin > file_bytes_) {
      // Empty tensors may end a file whose padding was never written; others fail below.
      for (const TensorInfo& tensor : result_.tensors) {
        if (tensor.bytes != 0 || tensor.offset != 0) return Truncated("the data of the tensors");
      }
      for (TensorInfo& tensor : result_.tensors) tensor.offset = file_bytes_;
      return OkStatus();
    }
    for (TensorInfo& tensor : result_.tensors) {
      if (__builtin_add_overflow(tensor.offset, result_.data_begin, &tensor.offset)) {
        tensor.offset = std::numeric_limits<uint64_t>::max();
      }
    }
    const DataSection section{.begin = result_.data_begin,
                              .end = file_bytes_,
                              .alignment = result_.alignment,
                              .may_trail = true};
    return SortAndCheckExtents(file_, section, &result_.tensors);
  }

  const std::span<const std::byte> head_;
  const uint64_t file_bytes_;
  const std::string& file_;
  Cursor cursor_;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  GgufFile result_;
};

}  // namespace

Result<GgufFile> ParseGguf(std::span<const std::byte> head, uint64_t file_bytes,
                           const std::string& file) {
  return GgufParser(head, file_bytes, file).Parse();
}

}  // namespace sixfold
