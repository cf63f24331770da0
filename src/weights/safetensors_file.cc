#include "weights/safetensors_file.h"

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "weights/error_text.h"
#include "weights/json_guard.h"
#include "weights/tensor_layout.h"

namespace sixfold {

namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxMetadataEntries = size_t{1} << 16;

// Reads {"__metadata__": {k: v}, name: {"dtype": …, "shape": […], "data_offsets": [b, e]}}. Sizes
// and offsets are checked against each other and the file when the object of a tensor closes.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::string file, uint64_t data_begin, uint64_t file_bytes)
      : file_(std::move(file)), data_begin_(data_begin), data_bytes_(file_bytes - data_begin) {}

  SafetensorsFile& result() { return result_; }
  Status error() const {
    return error_.ok() ? InvalidFile(file_ + ": header: the JSON is damaged") : error_;
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return Unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(Quote(text));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (tensor_.shape.size() == kMaxSafetensorsDims) {
        return TensorError("has more than " + std::to_string(kMaxSafetensorsDims) + " dimensions");
      }
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return TensorError("has dimension " + std::to_string(value) + ", which is out of range");
      }
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && offsets_count_ < 2) {
      offsets_[offsets_count_++] = value;
      return true;
    }
    return Unexpected(std::to_string(value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (result_.metadata.size() == kMaxMetadataEntries) {
        return Fail("header: __metadata__ has more than " + std::to_string(kMaxMetadataEntries) +
                    " entries");
      }
      if (!result_.metadata.emplace(key_, std::move(value)).second) {
        return Fail("header: __metadata__ has key " + Quote(key_) + " twice");
      }
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return Unexpected("a string");
    const auto dtype = DTypeFromSafetensors(value);
    if (!dtype.has_value())
      return TensorError("has dtype " + Quote(value) + ", which is not known");
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart: place_ = Place::kRoot; return true;
      case Place::kRoot:
        place_ = key_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
        if (place_ == Place::kMetadata && std::exchange(has_metadata_, true)) {
          return Fail("header: __metadata__ appears twice");
        }
        if (place_ == Place::kTensor) return StartTensor();
        return true;
      default: return Unexpected("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::kTensor && !EndTensor()) return false;
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    if (place_ != Place::kTensor) return true;
    const unsigned field = key_ == "dtype"          ? 1
                           : key_ == "shape"        ? 2
                           : key_ == "data_offsets" ? 4
                                                    : 0;
    if (field == 0) {
      return TensorError("has field " + Quote(key_) +
                         "; dtype, shape and data_offsets were expected");
    }
    if ((fields_ & field) != 0) return TensorError("has field " + Quote(key_) + " twice");
    fields_ |= field;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail("header: the JSON is damaged at byte " + std::to_string(kLengthBytes + position));
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(const std::string& what) {
    if (error_.ok()) error_ = InvalidFile(file_ + ": " + what);
    return false;
  }
  bool TensorError(const std::string& what) {
    return Fail("tensor " + Quote(tensor_.name) + " " + what);
  }

  bool Unexpected(const std::string& found) {
    switch (place_) {
      case Place::kStart:
        return Fail("header: " + found + " where the header's object was expected");
      case Place::kRoot:
        return Fail("header: key " + Quote(key_) + " holds " + found + ", an object was expected");
      case Place::kMetadata:
        return Fail("header: __metadata__ key " + Quote(key_) + " holds " + found +
                    ", a string was expected");
      case Place::kShape:
        return TensorError("has " + found + " in its shape, whole numbers from 0 were expected");
      case Place::kOffsets:
        return TensorError("has " + found +
                           " in its data_offsets, two whole numbers from 0 were expected");
      default: return TensorError("has " + found + " as " + Quote(key_));
    }
  }

  bool StartTensor() {
    if (result_.tensors.size() == kMaxTensors) {
      return Fail("header: more than " + std::to_string(kMaxTensors) + " tensors");
    }
    tensor_ = {.name = key_};
    fields_ = 0;
    offsets_count_ = 0;
    return true;
  }

  bool EndTensor() {
    for (const auto& [field, name] :
         {std::pair(1u, "dtype"), std::pair(2u, "shape"), std::pair(4u, "data_offsets")}) {
      if ((fields_ & field) == 0) return TensorError(std::string("lacks ") + name);
    }
    if (offsets_count_ != 2) {
      return TensorError("has " + std::to_string(offsets_count_) +
                         " data_offsets, 2 were expected");
    }
    const auto [begin, end] = offsets_;
    const std::string offsets =
        "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
    const auto bytes = TensorBytes(tensor_.dtype, tensor_.shape);
    const std::string kind = std::string(NameOf(tensor_.dtype)) + " " + ShapeText(tensor_.shape);
    if (!bytes.has_value()) return TensorError("has shape " + kind + ", whose size overflows");
    if (begin > end) return TensorError("has " + offsets + ", which end before they begin");
    if (end > data_bytes_) {
      return TensorError("has " + offsets + ", the file holds " + std::to_string(data_bytes_) +
                         " bytes of data: it is truncated or its header is wrong");
    }
    if (end - begin != *bytes) {
      return TensorError("has " + offsets + ", " + std::to_string(end - begin) + " bytes, but " +
                         kind + " needs " + std::to_string(*bytes));
    }
    tensor_.bytes = *bytes;
    tensor_.offset = data_begin_ + begin;
    result_.tensors.push_back(std::move(tensor_));
    return true;
  }

  const std::string file_;
  const uint64_t data_begin_;
  const uint64_t data_bytes_;
  SafetensorsFile result_;
  Status error_;
  Place place_ = Place::kStart;
  std::string key_;
  bool has_metadata_ = false;
  TensorInfo tensor_;
  unsigned fields_ = 0;  // bit set of those seen in the tensor
  uint64_t offsets_[2] = {};
  size_t offsets_count_ = 0;
};

// Runs the reader over the text. The library's parser is iterative, so depth costs no stack.
template <typename Reader>
Status ParseJson(std::string_view text, Reader* reader) {
  try {
    if (!Json::sax_parse(text.begin(), text.end(), reader)) return reader->error();
  } catch (const Json::exception&) {
    return reader->error();
  }
  return OkStatus();
}

// The header's length in bytes, checked against the file.
Result<uint64_t> HeaderBytes(std::span<const std::byte> head, uint64_t file_bytes,
                             const std::string& file) {
  if (file_bytes < kLengthBytes || head.size() < kLengthBytes) {
    return InvalidFile(file + ": has " + std::to_string(file_bytes) +
                       " bytes, too few for a safetensors file (8 for the header's length)");
  }
  uint64_t length = 0;
  std::memcpy(&length, head.data(), kLengthBytes);
  if (length > kMaxSafetensorsHeader) {
    return InvalidFile(file + ": claims a header of " + std::to_string(length) +
                       " bytes, at most " + std::to_string(kMaxSafetensorsHeader) +
                       " are allowed: is it a safetensors file?");
  }
  if (length > file_bytes - kLengthBytes || length > head.size() - kLengthBytes) {
    return InvalidFile(file + ": claims a header of " + std::to_string(length) +
                       " bytes, the file has " + std::to_string(file_bytes - kLengthBytes) +
                       " after the length: it is truncated");
  }
  return length;
}

}  // namespace

Result<SafetensorsFile> ParseSafetensors(std::span<const std::byte> head, uint64_t file_bytes,
                                         const std::string& file) {
  SF_ASSIGN_OR_RETURN(const uint64_t length, HeaderBytes(head, file_bytes, file));
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    return InvalidFile(file + ": header: does not begin with '{' (found " +
                       Quote(text.substr(0, 1)) + "): is it a safetensors file?");
  }
  SF_RETURN_IF_ERROR(CheckJsonLimits(text, {}, file));
  const uint64_t data_begin = kLengthBytes + length;
  HeaderReader reader(file, data_begin, file_bytes);
  SF_RETURN_IF_ERROR(ParseJson(text, &reader));
  SafetensorsFile result = std::move(reader.result());
  SF_RETURN_IF_ERROR(CheckUniqueNames(file, result.tensors));
  const DataSection section{.begin = data_begin, .end = file_bytes};
  SF_RETURN_IF_ERROR(SortAndCheckExtents(file, section, &result.tensors));
  return result;
}

namespace {

// Keeps weight_map; everything else (metadata with its sizes) is skipped, as other readers do.
class IndexReader : public nlohmann::json_sax<Json> {
 public:
  explicit IndexReader(std::string file) : file_(std::move(file)) {}

  Status error() const {
    return error_.ok() ? InvalidFile(file_ + ": the JSON is damaged") : error_;
  }
  bool has_map() const { return has_map_; }
  // Tensor name → file name.
  std::map<std::string, std::string>& entries() { return entries_; }

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return Scalar("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Scalar("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Scalar("a number"); }
  bool binary(binary_t&) override { return Scalar("binary data"); }

  bool string(string_t& value) override {
    if (!InMap()) return Scalar("a string");
    if (entries_.size() == kMaxTensors) {
      return Fail("weight_map has more than " + std::to_string(kMaxTensors) + " entries");
    }
    if (!entries_.emplace(key_, std::move(value)).second) {
      return Fail("weight_map has tensor " + Quote(key_) + " twice");
    }
    return true;
  }

  bool start_object(size_t) override {
    if (InMap()) return Scalar("an object");
    if (depth_ == 1 && key_ == "weight_map") {
      if (std::exchange(has_map_, true)) return Fail("weight_map appears twice");
      in_map_ = true;
    }
    ++depth_;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1) in_map_ = false;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ == 0 || InMap() || (depth_ == 1 && key_ == "weight_map")) return Scalar("an array");
    ++depth_;
    return true;
  }

  bool end_array() override {
    --depth_;
    return true;
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail("the JSON is damaged at byte " + std::to_string(position));
  }

 private:
  bool InMap() const { return in_map_ && depth_ == 2; }

  bool Fail(const std::string& what) {
    if (error_.ok()) error_ = InvalidFile(file_ + ": " + what);
    return false;
  }

  bool Scalar(const std::string& found) {
    if (InMap()) {
      return Fail("weight_map: tensor " + Quote(key_) + " holds " + found +
                  ", a file name was expected");
    }
    if (depth_ == 0) return Fail("holds " + found + ", an object was expected");
    if (depth_ == 1 && key_ == "weight_map") {
      return Fail("weight_map holds " + found + ", an object was expected");
    }
    return true;
  }

  const std::string file_;
  Status error_;
  std::map<std::string, std::string> entries_;
  std::string key_;
  size_t depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;
};

// A shard lies beside its index: a path could lead anywhere on the machine.
Status CheckShardName(const std::string& name, const std::string& tensor, const std::string& file) {
  constexpr std::string_view kEnding = ".safetensors";
  const bool plain = name.size() > kEnding.size() && name.ends_with(kEnding) && name.size() < 256 &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos &&
                     name.find("..") == std::string::npos;
  if (plain) return OkStatus();
  return InvalidFile(file + ": weight_map: tensor " + Quote(tensor) + " is in file " + Quote(name) +
                     "; a plain name ending in .safetensors was expected");
}

}  // namespace

Result<ShardIndex> ParseShardIndex(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() > kMaxSafetensorsHeader) {
    return InvalidFile(file + ": has " + std::to_string(bytes.size()) + " bytes, at most " +
                       std::to_string(kMaxSafetensorsHeader) + " are allowed for an index");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  SF_RETURN_IF_ERROR(CheckJsonLimits(text, {}, file));
  IndexReader reader(file);
  SF_RETURN_IF_ERROR(ParseJson(text, &reader));
  if (!reader.has_map()) return InvalidFile(file + ": lacks weight_map");
  if (reader.entries().empty()) return InvalidFile(file + ": weight_map is empty");
  std::map<std::string, uint32_t> numbers;
  for (const auto& [tensor, name] : reader.entries()) {
    SF_RETURN_IF_ERROR(CheckShardName(name, tensor, file));
    numbers.emplace(name, 0);
  }
  ShardIndex index;
  for (auto& [name, number] : numbers) {
    number = static_cast<uint32_t>(index.files.size());
    index.files.push_back(name);
  }
  while (!reader.entries().empty()) {
    auto node = reader.entries().extract(reader.entries().begin());
    index.weight_map.emplace(std::move(node.key()), numbers.at(node.mapped()));
  }
  return index;
}

}  // namespace sixfold
