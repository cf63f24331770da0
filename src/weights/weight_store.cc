#include "weights/weight_store.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/plural.h"
#include "weights/error_text.h"
#include "weights/folder_contents.h"
#include "weights/gguf_file.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_file.h"
#include "weights/tensor_layout.h"
#include "weights/weights_hash.h"

namespace sixfold {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kIndexEnding = ".safetensors.index.json";
constexpr uint64_t kMaxGgufParts = 9999;

// "<stem>-00001-of-00003.gguf" → the name of part `part` (from 0) of `count`.
std::string PartName(const std::string& stem, uint64_t part, uint64_t count) {
  char ending[40];
  std::snprintf(ending, sizeof(ending), "-%05u-of-%05u.gguf", static_cast<unsigned>(part + 1),
                static_cast<unsigned>(count));
  return stem + ending;
}

}  // namespace

WeightStore::WeightStore() : hash_(std::make_unique<WeightsHash>(*this)) {}

WeightStore::~WeightStore() { hash_.reset(); }

Result<std::unique_ptr<WeightStore>> WeightStore::Open(const fs::path& path) {
  std::unique_ptr<WeightStore> store(new WeightStore);
  store->path_ = path.string();
  try {
    std::error_code error;
    fs::path file = path;
    if (fs::is_directory(path, error)) {
      file = path / "model.safetensors";
      if (!fs::exists(file, error)) file = path / "model.safetensors.index.json";
      SF_RETURN_IF_ERROR(CheckHoldsWeights(path));
    }
    const std::string name = file.filename().string();
    Status status;
    if (name.ends_with(kIndexEnding)) {
      status = store->OpenShards(file);
    } else {
      SF_ASSIGN_OR_RETURN(const uint32_t number, store->AddFile(file));
      const bool gguf = name.ends_with(".gguf") || LooksLikeGguf(store->files_[number]->bytes());
      status = gguf ? store->OpenGguf(file) : store->OpenSafetensors(file);
    }
    SF_RETURN_IF_ERROR(status);
    SF_RETURN_IF_ERROR(store->AddIndex());
  } catch (const std::bad_alloc&) {
    return OutOfMemory(store->path_ + ": no memory left to read its header");
  }
  return store;
}

Result<uint32_t> WeightStore::AddFile(const fs::path& file) {
  SF_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, MappedFile::Open(file));
  files_.push_back(std::move(mapped));
  return static_cast<uint32_t>(files_.size() - 1);
}

Status WeightStore::AddTensors(std::vector<TensorInfo> tensors, uint32_t file) {
  if (tensors_.size() + tensors.size() > kMaxTensors) {
    return InvalidFile(path_ + ": has more than " + std::to_string(kMaxTensors) + " tensors");
  }
  for (TensorInfo& tensor : tensors) {
    tensor.file = file;
    tensors_.push_back(std::move(tensor));
  }
  return OkStatus();
}

Status WeightStore::AddIndex() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [it, is_new] = index_.emplace(tensors_[i].name, i);
    if (is_new) continue;
    return InvalidFile(path_ + ": tensor " + Quote(tensors_[i].name) + " is in two files, " +
                       FileName(tensors_[it->second]) + " and " + FileName(tensors_[i]));
  }
  return OkStatus();
}

Status WeightStore::OpenSafetensors(const fs::path& file) {
  format_ = Format::kSafetensors;
  const auto bytes = files_[0]->bytes();
  SF_ASSIGN_OR_RETURN(SafetensorsFile parsed, ParseSafetensors(bytes, bytes.size(), file.string()));
  safetensors_metadata_ = std::move(parsed.metadata);
  return AddTensors(std::move(parsed.tensors), 0);
}

Status WeightStore::OpenShards(const fs::path& index_path) {
  format_ = Format::kSafetensors;
  std::optional<ShardIndex> index;
  {
    SF_ASSIGN_OR_RETURN(const auto text, MappedFile::Open(index_path));
    SF_ASSIGN_OR_RETURN(index, ParseShardIndex(text->bytes(), index_path.string()));
  }
  std::unordered_map<std::string, uint32_t>& listed = index->weight_map;
  std::unordered_map<std::string, size_t> chosen;  // name → index into tensors_
  for (const std::string& name : index->files) {
    const fs::path path = index_path.parent_path() / name;
    const auto number = AddFile(path);
    if (!number.ok()) return number.status().WithContext(index_path.string() + " names this shard");
    const auto bytes = files_[*number]->bytes();
    SF_ASSIGN_OR_RETURN(SafetensorsFile shard,
                        ParseSafetensors(bytes, bytes.size(), path.string()));
    if (*number == 0) safetensors_metadata_ = std::move(shard.metadata);
    std::vector<TensorInfo> fresh;
    for (TensorInfo& tensor : shard.tensors) {
      tensor.listed = listed.contains(tensor.name);
      const auto [it, is_new] = chosen.emplace(tensor.name, tensors_.size() + fresh.size());
      if (is_new) {
        fresh.push_back(std::move(tensor));
        continue;
      }
      // In two shards: the index says which. Where it says neither, the last one counts, as in
      // transformers.
      const auto place = listed.find(tensor.name);
      TensorInfo& kept = tensors_[it->second];
      if (place != listed.end() && place->second == kept.file) continue;
      tensor.file = *number;
      kept = std::move(tensor);
    }
    SF_RETURN_IF_ERROR(AddTensors(std::move(fresh), *number));
  }
  for (const auto& [name, number] : listed) {
    if (chosen.contains(name)) continue;
    return InvalidFile(index_path.string() + ": tensor " + Quote(name) + " is listed for shard " +
                       Quote(index->files[number]) +
                       ", which does not hold it, nor does another shard");
  }
  // A replacement may lie in a later file than the tensors after it.
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& x, const TensorInfo& y) {
    return std::tie(x.file, x.offset, x.name) < std::tie(y.file, y.offset, y.name);
  });
  return OkStatus();
}

Status WeightStore::OpenGguf(const fs::path& file) {
  format_ = Format::kGguf;
  const auto bytes = files_[0]->bytes();
  SF_ASSIGN_OR_RETURN(GgufFile parsed, ParseGguf(bytes, bytes.size(), file.string()));
  gguf_ = std::make_unique<GgufMetadata>(std::move(parsed.metadata));
  SF_RETURN_IF_ERROR(AddTensors(std::move(parsed.tensors), 0));
  SF_ASSIGN_OR_RETURN(const uint64_t parts, gguf_->GetU64Or("split.count", 1));
  return parts > 1 ? AddGgufParts(file) : OkStatus();
}

Status WeightStore::AddGgufParts(const fs::path& first) {
  SF_ASSIGN_OR_RETURN(const uint64_t count, gguf_->GetU64("split.count"));
  SF_ASSIGN_OR_RETURN(const uint64_t number, gguf_->GetU64("split.no"));
  if (count > kMaxGgufParts) {
    return InvalidFile(first.string() + ": key 'split.count' is " + std::to_string(count) +
                       ", at most " + std::to_string(kMaxGgufParts) + " was expected");
  }
  if (number != 0) {
    return InvalidFile(first.string() + ": is part " + std::to_string(number + 1) + " of " +
                       std::to_string(count) + ": name the first part instead");
  }
  const std::string name = first.filename().string();
  const std::string ending = PartName("", 0, count);
  if (!name.ends_with(ending)) {
    return InvalidFile(first.string() + ": is the first of " + std::to_string(count) +
                       " parts; a name ending in " + ending + " was expected");
  }
  const std::string stem = name.substr(0, name.size() - ending.size());
  for (uint64_t part = 1; part < count; ++part) {
    const fs::path path = first.parent_path() / PartName(stem, part, count);
    const auto file = AddFile(path);
    if (!file.ok()) return file.status().WithContext(first.string() + " needs this part");
    const auto bytes = files_[*file]->bytes();
    SF_ASSIGN_OR_RETURN(GgufFile parsed, ParseGguf(bytes, bytes.size(), path.string()));
    SF_ASSIGN_OR_RETURN(const uint64_t its_number, parsed.metadata.GetU64("split.no"));
    SF_ASSIGN_OR_RETURN(const uint64_t its_count, parsed.metadata.GetU64("split.count"));
    if (its_number != part || its_count != count) {
      return InvalidFile(path.string() + ": says it is part " + std::to_string(its_number + 1) +
                         " of " + std::to_string(its_count) + ", part " + std::to_string(part + 1) +
                         " of " + std::to_string(count) + " was expected");
    }
    SF_RETURN_IF_ERROR(AddTensors(std::move(parsed.tensors), *file));
  }
  SF_ASSIGN_OR_RETURN(const uint64_t total,
                      gguf_->GetU64Or("split.tensors.count", tensors_.size()));
  if (total == tensors_.size()) return OkStatus();
  return InvalidFile(first.string() + ": key 'split.tensors.count' is " + std::to_string(total) +
                     ", the parts hold " + Plural(static_cast<int64_t>(tensors_.size()), "tensor"));
}

const TensorInfo* WeightStore::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<const TensorInfo*> WeightStore::Require(std::string_view name) const {
  const TensorInfo* tensor = Find(name);
  if (tensor != nullptr) return tensor;
  return InvalidFile(path_ + ": tensor " + Quote(name) + " is missing (" +
                     Plural(static_cast<int64_t>(tensors_.size()), "tensor") + " in " +
                     Plural(static_cast<int64_t>(files_.size()), "file") + ")");
}

const std::string& WeightStore::FileName(const TensorInfo& tensor) const {
  SF_CHECK_LT(tensor.file, files_.size());
  return files_[tensor.file]->path();
}

void WeightStore::DropPages(const TensorInfo& tensor) const {
  files_[tensor.file]->DropPages(Bytes(tensor));
}

void WeightStore::DropPages(std::span<const std::byte> part) const {
  for (const auto& file : files_) {
    const auto bytes = file->bytes();
    if (part.data() >= bytes.data() && part.data() < bytes.data() + bytes.size()) {
      file->DropPages(part);
    }
  }
}

void WeightStore::DropAllPages() const {
  for (const auto& file : files_) file->DropPages(file->bytes());
}

std::span<const std::byte> WeightStore::Bytes(const TensorInfo& tensor) const {
  SF_CHECK_LT(tensor.file, files_.size());
  const auto bytes = files_[tensor.file]->bytes();
  SF_CHECK_LE(tensor.offset, bytes.size());
  SF_CHECK_LE(tensor.bytes, bytes.size() - tensor.offset);
  return bytes.subspan(tensor.offset, tensor.bytes);
}

uint64_t WeightStore::file_bytes() const {
  uint64_t total = 0;
  for (const auto& file : files_) total += file->bytes().size();
  return total;
}

Result<MatrixView> WeightStore::Matrix(const TensorInfo& tensor) const {
  if (tensor.shape.size() > 2) {
    return InvalidFile(FileName(tensor) + ": " + DescribeTensor(tensor) + " has " +
                       std::to_string(tensor.shape.size()) +
                       " dimensions, at most 2 were expected");
  }
  return View(tensor, 1, 0);
}

Result<MatrixView> WeightStore::Slice(const TensorInfo& tensor, int64_t index) const {
  if (tensor.shape.size() != 3) {
    return InvalidFile(FileName(tensor) + ": " + DescribeTensor(tensor) + " has " +
                       std::to_string(tensor.shape.size()) + " dimensions, 3 were expected");
  }
  if (index < 0 || index >= tensor.shape[0]) {
    return InvalidArgument(FileName(tensor) + ": " + DescribeTensor(tensor) + " has no slice " +
                           std::to_string(index));
  }
  return View(tensor, tensor.shape[0], index);
}

Result<MatrixView> WeightStore::SliceTransposed(const TensorInfo& tensor, int64_t index) const {
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
    return InvalidFile(FileName(tensor) + ": " + DescribeTensor(tensor) + " stands the other way round; F32, F16 or BF16 was expected");
  }
  SF_ASSIGN_OR_RETURN(MatrixView view, Slice(tensor, index));
  std::swap(view.rows, view.cols);
  view.col_stride_bytes = view.row_stride_bytes;
  view.row_stride_bytes = InfoOf(tensor.dtype).block_bytes;
  return view;
}

Result<MatrixView> WeightStore::Mxfp4Slice(const TensorInfo& blocks, const TensorInfo& scales, int64_t index) const {
  const std::vector<int64_t>& shape = blocks.shape;
  if (blocks.dtype != DType::kU8 || shape.size() != 4 || shape[3] != 16) {
    return InvalidFile(FileName(blocks) + ": " + DescribeTensor(blocks) + " was expected as MXFP4 blocks, U8 [count, rows, columns / 32, 16]");
  }
  const std::vector<int64_t> wanted(shape.begin(), shape.end() - 1);
  if (scales.dtype != DType::kU8 || scales.shape != wanted) {
    return InvalidFile(FileName(scales) + ": " + DescribeTensor(scales) + " was expected as U8 " + ShapeText(wanted) +
                       ", one scale for each block of " + DescribeTensor(blocks));
  }
  if (index < 0 || index >= shape[0]) {
    return InvalidArgument(FileName(blocks) + ": " + DescribeTensor(blocks) + " has no slice " + std::to_string(index));
  }
  MatrixView view;
  view.dtype = DType::kMXFP4Split;
  view.rows = shape[1];
  view.cols = shape[2] * 32;
  view.row_stride_bytes = shape[2] * 16;
  view.data = Bytes(blocks).data() + index * view.rows * view.row_stride_bytes;
  view.scales = {.data = Bytes(scales).data() + index * view.rows * shape[2], .dtype = DType::kU8, .cols = shape[2]};
  return view;
}

Result<MatrixView> WeightStore::View(const TensorInfo& tensor, int64_t slices,
                                     int64_t index) const {
  if (!CanDequantize(tensor.dtype)) {
    return InvalidFile(
        FileName(tensor) + ": " + DescribeTensor(tensor) + " is of a type that no kernel " +
        "reads; F32, F16, BF16, F8_E4M3, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4 " +
        "was expected");
  }
  const size_t dims = tensor.shape.size();
  const DTypeInfo& info = InfoOf(tensor.dtype);
  MatrixView view;
  view.dtype = tensor.dtype;
  view.rows = dims >= 2 ? tensor.shape[dims - 2] : 1;
  view.cols = dims >= 1 ? tensor.shape[dims - 1] : 1;
  view.row_stride_bytes = view.cols / info.block_elements * info.block_bytes;
  const uint64_t slice_bytes = slices > 0 ? tensor.bytes / static_cast<uint64_t>(slices) : 0;
  view.data = Bytes(tensor).data() + slice_bytes * static_cast<uint64_t>(index);
  if (tensor.dtype == DType::kF8E4M3)
    SF_RETURN_IF_ERROR(AttachScales(tensor, slices, index, &view));
  return view;
}

Status WeightStore::AttachScales(const TensorInfo& tensor, int64_t slices, int64_t index,
                                 MatrixView* view) const {
  const TensorInfo* scales = Find(tensor.name + "_scale_inv");
  if (scales == nullptr) return OkStatus();
  const auto blocks = [](int64_t n) {
    return n / BlockScales::kBlock + (n % BlockScales::kBlock != 0);
  };
  const int64_t grid_rows = blocks(view->rows);
  const int64_t grid_cols = blocks(view->cols);
  std::vector<int64_t> wanted = {grid_rows, grid_cols};
  if (tensor.shape.size() == 3) wanted.insert(wanted.begin(), slices);
  if (scales->shape != wanted) {
    return InvalidFile(FileName(*scales) + ": " + DescribeTensor(*scales) + " was expected as " +
                       ShapeText(wanted) + ", one scale for each 128x128 block of " +
                       DescribeTensor(tensor));
  }
  if (scales->dtype != DType::kF32 && scales->dtype != DType::kBF16) {
    return InvalidFile(FileName(*scales) + ": " + DescribeTensor(*scales) +
                       " holds block scales, F32 or BF16 was expected");
  }
  const auto slice_bytes = static_cast<uint64_t>(grid_rows * grid_cols) *
                           static_cast<uint64_t>(InfoOf(scales->dtype).block_bytes);
  view->scales.data = Bytes(*scales).data() + slice_bytes * static_cast<uint64_t>(index);
  view->scales.dtype = scales->dtype;
  view->scales.cols = grid_cols;
  return OkStatus();
}

}  // namespace sixfold
