// The tensors of a model's weight files, memory-mapped: safetensors (one file or shards behind an
// index) and GGUF. Opening reads the headers only; a tensor, or a slice of it, is read without
// touching the rest.
//
// Formats: https://huggingface.co/docs/safetensors and
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/matrix_view.h"
#include "weights/gguf_metadata.h"

namespace sixfold {

class MappedFile;
class WeightsHash;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first, also for GGUF; empty for a scalar
  uint64_t bytes = 0;          // of the data
  uint32_t file = 0;           // index into the store's files
  uint64_t offset = 0;         // of the first data byte from the start of that file
  bool listed = true;          // false: in a shard, and the index of the shards does not name it
};

// Read-only and thread-safe once open. Every span and view borrows the mapping: the store must
// outlive them.
//
// Errors are kInvalidFile and name the file, the tensor or key, what was expected and what was
// found. Everything that a file claims is checked before Open returns, so Bytes() of any tensor
// lies inside its file. What cannot be checked: a file that another process shortens while it is
// mapped ends this process with SIGBUS; replace weight files by renaming.
class WeightStore {
 public:
  enum class Format { kSafetensors, kGguf };
  // `path`: a folder with model.safetensors or model.safetensors.index.json, that index, one
  // .safetensors file, or one .gguf file (of a split GGUF, its first part).
  static Result<std::unique_ptr<WeightStore>> Open(const std::filesystem::path& path);
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  Format format() const { return format_; }
  // In the order of their data, file by file.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* Find(std::string_view name) const;
  // Find, or kInvalidFile that names the files searched.
  Result<const TensorInfo*> Require(std::string_view name) const;
  // Path of the tensor's file, for messages.
  const std::string& FileName(const TensorInfo& tensor) const;
  // Path given to Open, for messages about the store as a whole.
  const std::string& path() const { return path_; }
  std::span<const std::byte> Bytes(const TensorInfo& tensor) const;
  // Lets the kernel take back the memory of the tensor's pages; they are read again when touched. For what has been copied.
  void DropPages(const TensorInfo& tensor) const;
  // The same for a part of a tensor; bytes of no file are left alone.
  void DropPages(std::span<const std::byte> part) const;
  // The same for all files, headers included. A kernel maps the neighbours of a page that is
  // touched along with it (64 KiB), so that reading many small tensors keeps more than they are.
  void DropAllPages() const;
  size_t file_count() const { return files_.size(); }
  const MappedFile& file(size_t index) const { return *files_[index]; }
  // Bytes of all files together.
  uint64_t file_bytes() const;

  // The tensor as [rows, cols]; [n] reads as [1, n], a scalar as [1, 1], more than two dimensions
  // are refused. F8_E4M3 takes its scales from tensor `name` + "_scale_inv" if there is one, whose
  // shape must be [ceil(rows / 128), ceil(cols / 128)] in F32 or BF16. Types that the kernels
  // cannot read are refused.
  Result<MatrixView> Matrix(const TensorInfo& tensor) const;
  // Matrix `index` of a [count, rows, cols] tensor; scales then are [count, ceil(rows / 128),
  // ceil(cols / 128)].
  Result<MatrixView> Slice(const TensorInfo& tensor, int64_t index) const;

  // Matrix `index` of a [count, cols, rows] tensor of F32, F16 or BF16 as [rows, cols].
  Result<MatrixView> SliceTransposed(const TensorInfo& tensor, int64_t index) const;
  // Matrix `index` of MXFP4 blocks U8 [count, rows, cols / 32, 16] and their scales U8 [count, rows, cols / 32].
  Result<MatrixView> Mxfp4Slice(const TensorInfo& blocks, const TensorInfo& scales, int64_t index) const;

  // Null for safetensors.
  const GgufMetadata* gguf() const { return gguf_.get(); }
  // `__metadata__` of the (first) safetensors file; empty for GGUF.
  const std::map<std::string, std::string>& safetensors_metadata() const {
    return safetensors_metadata_;
  }

  // Over every byte of the tensors; see there for when it is known.
  WeightsHash& hash() const { return *hash_; }

 private:
  WeightStore();
  Status OpenSafetensors(const std::filesystem::path& file);
  Status OpenShards(const std::filesystem::path& index);
  Status OpenGguf(const std::filesystem::path& file);
  Status AddGgufParts(const std::filesystem::path& first);
  Result<uint32_t> AddFile(const std::filesystem::path& file);
  Status AddTensors(std::vector<TensorInfo> tensors, uint32_t file);
  Status AddIndex();
  Result<MatrixView> View(const TensorInfo& tensor, int64_t slices, int64_t index) const;
  Status AttachScales(const TensorInfo& tensor, int64_t slices, int64_t index,
                      MatrixView* view) const;

  Format format_ = Format::kSafetensors;
  std::string path_;
  std::vector<std::unique_ptr<MappedFile>> files_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // into tensors_, whose strings it borrows
  std::unique_ptr<GgufMetadata> gguf_;
  std::map<std::string, std::string> safetensors_metadata_;
  std::unique_ptr<WeightsHash> hash_;  // reads the files in threads of its own: the first to go
};

// "[2, 3]", for messages.
std::string ShapeText(std::span<const int64_t> shape);
// "tensor 'name' (BF16 [2, 3])", for messages; unprintable bytes of the name are escaped.
std::string DescribeTensor(const TensorInfo& tensor);

}  // namespace sixfold
