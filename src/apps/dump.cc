// sixfold dump: one tensor, dequantised, a slice at a time.
#include <fmt/format.h>

#include <algorithm>

#include "apps/commands.h"
#include "apps/loading.h"
#include "base/nearest.h"
#include "apps/output.h"
#include "apps/tensor_output.h"
#include "text/utf8.h"
#include "weights/tensor_reader.h"
#include "weights/weight_store.h"

namespace sixfold::apps {
namespace {

// 4 MiB of f32; a multiple of every type's block, so that a cut within a row is a cut between
// blocks.
constexpr int64_t kSliceValues = int64_t{1} << 20;

Status WriteSlices(const WeightStore& store, const TensorInfo& tensor, TensorOutput& output) {
  const int64_t rows = TensorRows(tensor), cols = TensorCols(tensor);
  if (rows == 0 || cols == 0) return OkStatus();
  const int64_t col_step = std::min(cols, kSliceValues);
  const int64_t row_step = std::max<int64_t>(1, kSliceValues / cols);
  std::vector<float> slice(static_cast<size_t>(std::min(rows, row_step) * col_step));
  for (int64_t row = 0; row < rows; row += row_step) {
    for (int64_t col = 0; col < cols; col += col_step) {
      const ReadRange range{row, std::min(row + row_step, rows), col,
                            std::min(col + col_step, cols)};
      SF_RETURN_IF_ERROR(ReadRows(store, tensor, range, slice.data()));
      const int64_t values = (range.row_end - range.row_begin) * (range.col_end - range.col_begin);
      SF_RETURN_IF_ERROR(output.Append({slice.data(), static_cast<size_t>(values)}));
    }
  }
  return OkStatus();
}

}  // namespace

Status RunDump(const Options& options) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  const std::string& name = options.arguments().front();
  const std::string& output_path = options.Text("output");
  if (output_path.empty())
    return InvalidArgument("--output is missing: the safetensors file to write");
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<WeightStore> store, WeightStore::Open(path));
  const TensorInfo* tensor = store->Find(name);
  if (tensor == nullptr) {
    std::vector<std::string> names;
    for (const TensorInfo& known : store->tensors()) names.push_back(known.name);
    return NotFound(fmt::format("{} has no tensor '{}'{}; `sixfold inspect` lists all {}", path,
                                ReplaceInvalidUtf8(name), DidYouMean(name, names, 3),
                                names.size()));
  }
  SF_ASSIGN_OR_RETURN(const auto output, TensorOutput::Create(output_path, name, tensor->shape));
  SF_RETURN_IF_ERROR(WriteSlices(*store, *tensor, *output));
  SF_RETURN_IF_ERROR(output->Commit());
  if (options.Flag("json")) {
    return Print(fmt::format("{{\"dtype\": \"{}\", \"shape\": {}, \"bytes\": {}}}\n",
                             NameOf(tensor->dtype), ShapeText(tensor->shape), tensor->bytes));
  }
  Remark(fmt::format("{}: {} as f32", output_path, DescribeTensor(*tensor)));
  return OkStatus();
}

}  // namespace sixfold::apps
