// Where the matrices and biases of experts lie in files: in one tensor an expert, in one tensor for all of them, or in
// GPT-OSS's pair of tensors, in which gate and up take turns and which stand the other way round or hold MXFP4 blocks.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mesh/axes.h"
#include "model/arch/family.h"
#include "model/config.h"
#include "tensor/matrix_view.h"
#include "weights/weight_store.h"

namespace sixfold {

// Borrowed from the store.
struct ExpertViews {
  MatrixView gate, up;  // [moe intermediate, hidden]
  MatrixView down;      // [hidden, moe intermediate]
};

// Columns of a stored type that share a scale or cannot be told apart.
inline int ScaleBlock(DType dtype) { return dtype == DType::kF8E4M3 ? 32 : InfoOf(dtype).block_elements; }

struct ExpertBiases {
  std::vector<float> gate, up;  // of the rows asked for
  std::vector<float> down;      // [hidden]
};

// Called with a tensor's name, the shape that it must have, and its type if only one will do.
using TensorVisit =
    std::function<Status(const std::string& name, const std::vector<int64_t>& shape, std::optional<DType> type)>;

// Borrows all three; immutable.
class ExpertTensors {
 public:
  ExpertTensors(const WeightStore& store, const ModelConfig& config, const TensorNames& names)
      : store_(store), c_(config), n_(names) {}

  // All tensors of a layer's experts. Stops at the first error of `visit`.
  Status Visit(int layer, const TensorVisit& visit) const;
  // The tensors must be there and have their shapes (Visit); nothing is read.
  Result<ExpertViews> Views(int layer, int expert) const;
  // Reads rows [begin, end) of the biases of gate and up, and the bias of down.
  Result<ExpertBiases> Biases(int layer, int expert, Share rows) const;
  // Bytes of an expert that the views walk through in strides, for DropPages; empty where rows lie together.
  std::vector<std::span<const std::byte>> StridedBytes(int layer, int expert) const;
  // Columns of down that share a scale; cuts are whole ones.
  Result<int> DownBlock(int layer) const;

 private:
  bool interleaved() const { return !n_.expert_gate_up.empty(); }
  // The MXFP4 form of a tensor, if that is what the files hold.
  bool Blocks(const std::string& base) const;
  Status VisitBlocks(const std::string& base, int64_t rows, int64_t cols, const TensorVisit& visit) const;
  Result<MatrixView> InterleavedView(const std::string& base, int expert) const;
  Result<MatrixView> View(const std::string& pattern, int layer, int expert) const;
  Result<std::vector<float>> BiasRow(const std::string& name, int expert, Share elements) const;

  const WeightStore& store_;
  const ModelConfig& c_;
  const TensorNames& n_;
};

}  // namespace sixfold
