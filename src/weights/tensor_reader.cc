#include "weights/tensor_reader.h"

#include <cstring>

#include "kernels/dequantize.h"
#include "weights/tensor_layout.h"

namespace sixfold {

namespace {

template <typename T>
void ConvertRun(const std::byte* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

// Plain types that no kernel reads; false for block types that are not dequantised.
bool ConvertPlain(DType dtype, const std::byte* data, int64_t count, float* out) {
  switch (dtype) {
    case DType::kF64: ConvertRun<double>(data, count, out); return true;
    case DType::kI64: ConvertRun<int64_t>(data, count, out); return true;
    case DType::kU64: ConvertRun<uint64_t>(data, count, out); return true;
    case DType::kI32: ConvertRun<int32_t>(data, count, out); return true;
    case DType::kU32: ConvertRun<uint32_t>(data, count, out); return true;
    case DType::kI16: ConvertRun<int16_t>(data, count, out); return true;
    case DType::kU16: ConvertRun<uint16_t>(data, count, out); return true;
    case DType::kI8: ConvertRun<int8_t>(data, count, out); return true;
    case DType::kU8:
    case DType::kBool: ConvertRun<uint8_t>(data, count, out); return true;
    case DType::kF8E5M2:
      // The upper half of a half-precision number.
      for (int64_t i = 0; i < count; ++i) {
        out[i] = F16ToF32(static_cast<uint16_t>(std::to_integer<uint16_t>(data[i]) << 8));
      }
      return true;
    default: return false;
  }
}

// The matrix that holds row `row` of the tensor. More than three dimensions have no scales to find,
// so they are read as one tall matrix.
Result<MatrixView> ViewOfRow(const WeightStore& store, const TensorInfo& tensor, int64_t row) {
  if (tensor.shape.size() <= 2) return store.Matrix(tensor);
  if (tensor.shape.size() == 3) return store.Slice(tensor, row / tensor.shape[1]);
  TensorInfo flat = tensor;
  flat.shape = {TensorRows(tensor), TensorCols(tensor)};
  return store.Matrix(flat);
}

// Columns [begin, end) of one row through the blocks that cover them.
void DequantizeColumns(const MatrixView& view, int64_t row, int64_t begin, int64_t end,
                       float* out) {
  const int64_t block = InfoOf(view.dtype).block_elements;
  const int64_t first = begin / block * block;
  const int64_t last = (end + block - 1) / block * block;
  const MatrixView cut = view.Cols(first, last);
  if (first == begin && last == end) {
    DequantizeRow(cut, row, out);
    return;
  }
  std::vector<float> whole(static_cast<size_t>(last - first));
  DequantizeRow(cut, row, whole.data());
  std::memcpy(out, whole.data() + (begin - first),
              static_cast<size_t>(end - begin) * sizeof(float));
}

Result<ReadRange> Resolve(const WeightStore& store, const TensorInfo& tensor, ReadRange range) {
  const int64_t rows = TensorRows(tensor);
  const int64_t cols = TensorCols(tensor);
  if (range.row_end == -1) range.row_end = rows;
  if (range.col_end == -1) range.col_end = cols;
  const bool inside = 0 <= range.row_begin && range.row_begin <= range.row_end &&
                      range.row_end <= rows && 0 <= range.col_begin &&
                      range.col_begin <= range.col_end && range.col_end <= cols;
  if (inside) return range;
  return InvalidArgument(store.FileName(tensor) + ": " + DescribeTensor(tensor) + " has no rows " +
                         std::to_string(range.row_begin) + " to " + std::to_string(range.row_end) +
                         ", columns " + std::to_string(range.col_begin) + " to " +
                         std::to_string(range.col_end));
}

Status ConvertRows(const WeightStore& store, const TensorInfo& tensor, const ReadRange& range,
                   float* out) {
  const int64_t width = InfoOf(tensor.dtype).block_bytes;
  const int64_t cols = range.col_end - range.col_begin;
  for (int64_t i = range.row_begin; i < range.row_end; ++i, out += cols) {
    // Not used for block types, whose offset this would not be.
    const int64_t element =
        IsBlockType(tensor.dtype) ? 0 : i * TensorCols(tensor) + range.col_begin;
    if (!ConvertPlain(tensor.dtype, store.Bytes(tensor).data() + element * width, cols, out)) {
      return InvalidFile(store.FileName(tensor) + ": " + DescribeTensor(tensor) +
                         " is of a type that is not dequantised");
    }
  }
  return OkStatus();
}

}  // namespace

int64_t TensorRows(const TensorInfo& tensor) {
  int64_t rows = 1;
  // An empty tensor's other dimensions may be anything: their product is not needed and might
  // overflow.
  if (tensor.bytes == 0) return tensor.shape.size() == 1 ? 1 : 0;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  return rows;
}

int64_t TensorCols(const TensorInfo& tensor) {
  return tensor.shape.empty() ? 1 : tensor.shape.back();
}

Status ReadRows(const WeightStore& store, const TensorInfo& tensor, const ReadRange& wanted,
                float* out) {
  SF_ASSIGN_OR_RETURN(const ReadRange range, Resolve(store, tensor, wanted));
  const int64_t cols = range.col_end - range.col_begin;
  if (cols == 0 || range.row_begin == range.row_end) return OkStatus();
  if (!CanDequantize(tensor.dtype)) return ConvertRows(store, tensor, range, out);
  const int64_t slice_rows = tensor.shape.size() == 3 ? tensor.shape[1] : TensorRows(tensor);
  MatrixView view;
  for (int64_t i = range.row_begin; i < range.row_end; ++i, out += cols) {
    if (i == range.row_begin || i % slice_rows == 0) {
      SF_ASSIGN_OR_RETURN(view, ViewOfRow(store, tensor, i));
    }
    DequantizeColumns(view, i % slice_rows, range.col_begin, range.col_end, out);
  }
  return OkStatus();
}

Result<std::vector<float>> ReadAll(const WeightStore& store, const TensorInfo& tensor) {
  // Bounded by the file: every element has at least half a byte there.
  std::vector<float> values(static_cast<size_t>(TensorRows(tensor) * TensorCols(tensor)));
  SF_RETURN_IF_ERROR(ReadRows(store, tensor, {}, values.data()));
  return values;
}

}  // namespace sixfold
