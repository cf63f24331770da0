#include "weights/tensor_layout.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "weights/error_text.h"

namespace sixfold {

std::string ShapeText(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

std::string DescribeTensor(const TensorInfo& tensor) {
  return "tensor " + Quote(tensor.name) + " (" + std::string(NameOf(tensor.dtype)) + " " +
         ShapeText(tensor.shape) + ")";
}

std::optional<uint64_t> TensorBytes(DType dtype, std::span<const int64_t> shape) {
  const DTypeInfo& info = InfoOf(dtype);
  const int64_t cols = shape.empty() ? 1 : shape.back();
  if (cols % info.block_elements != 0) return std::nullopt;
  // Zero dimensions are left out of the product, so that an empty tensor cannot hide an overflow in
  // a later one.
  int64_t product = info.block_bytes;
  bool empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t units = i + 1 == shape.size() ? shape[i] / info.block_elements : shape[i];
    if (units < 0) return std::nullopt;
    if (units == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, units, &product)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<uint64_t>(product);
}

Status CheckUniqueNames(const std::string& file, std::span<const TensorInfo> tensors) {
  std::unordered_set<std::string_view> seen;
  for (const TensorInfo& tensor : tensors) {
    if (!seen.insert(tensor.name).second) {
      return InvalidFile(file + ": tensor " + Quote(tensor.name) + " appears twice");
    }
  }
  return OkStatus();
}

namespace {

std::string Range(uint64_t begin, uint64_t end) {
  return "bytes " + std::to_string(begin) + " to " + std::to_string(end);
}

Status CheckInside(const std::string& file, const DataSection& section, const TensorInfo& tensor) {
  if (tensor.offset < section.begin || tensor.offset > section.end ||
      tensor.bytes > section.end - tensor.offset) {
    return InvalidFile(file + ": " + DescribeTensor(tensor) + " needs " +
                       std::to_string(tensor.bytes) + " bytes from byte " +
                       std::to_string(tensor.offset) + ", the file ends at byte " +
                       std::to_string(section.end) + ": it is truncated or its header is wrong");
  }
  if ((tensor.offset - section.begin) % section.alignment != 0) {
    return InvalidFile(file + ": " + DescribeTensor(tensor) + " begins at offset " +
                       std::to_string(tensor.offset - section.begin) +
                       " of the data, which is unaligned: a multiple of " +
                       std::to_string(section.alignment) + " was expected");
  }
  return OkStatus();
}

// `position` is the end of `before` (null for the first tensor), `next` the first place where
// `tensor` may begin.
Status CheckNeighbours(const std::string& file, const TensorInfo* before, const TensorInfo& tensor,
                       uint64_t position, uint64_t next) {
  if (tensor.offset < position) {
    return InvalidFile(file + ": " + DescribeTensor(tensor) + " begins at byte " +
                       std::to_string(tensor.offset) + " and overlaps " + DescribeTensor(*before) +
                       ", " + Range(before->offset, position));
  }
  if (tensor.offset > next) {
    return InvalidFile(file + ": a hole before " + DescribeTensor(tensor) + ": " +
                       Range(position, tensor.offset) + " belong to no tensor");
  }
  return OkStatus();
}

}  // namespace

Status SortAndCheckExtents(const std::string& file, const DataSection& section,
                           std::vector<TensorInfo>* tensors) {
  for (const TensorInfo& tensor : *tensors) SF_RETURN_IF_ERROR(CheckInside(file, section, tensor));
  std::sort(tensors->begin(), tensors->end(), [](const TensorInfo& a, const TensorInfo& b) {
    if (a.offset != b.offset) return a.offset < b.offset;
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.name < b.name;
  });
  uint64_t position = section.begin;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : *tensors) {
    const uint64_t rest = (position - section.begin) % section.alignment;
    const uint64_t next = rest == 0 ? position : position + (section.alignment - rest);
    SF_RETURN_IF_ERROR(CheckNeighbours(file, before, tensor, position, next));
    position = tensor.offset + tensor.bytes;
    before = &tensor;
  }
  if (!section.may_trail && position != section.end) {
    return InvalidFile(file + ": " + Range(position, section.end) +
                       " after the last tensor belong to no tensor");
  }
  return OkStatus();
}

}  // namespace sixfold
