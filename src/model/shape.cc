#include "model/shape.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "kernels/dequantize.h"
#include "mesh/reduction.h"
#include "model/expert_tensors.h"
#include "model/inventory.h"

namespace sixfold {

namespace {

// The coarsest block along K of one weight over the layers that have it; 1 when none has.
Result<int> CoarsestBlock(const WeightStore& store, const ModelConfig& config, const TensorNames& names,
                          const std::string& pattern, std::optional<bool> sparse) {
  int block = 1;
  for (int l = 0; l < static_cast<int>(config.layers.size()); ++l) {
    if (sparse && config.layers[l].sparse != *sparse) continue;
    SF_ASSIGN_OR_RETURN(const TensorInfo* t, store.Require(FillName(pattern, l) + names.weight));
    block = std::max(block, ScaleBlock(t->dtype));
  }
  return block;
}

}  // namespace

Result<ModelShape> ShapeOf(const WeightStore& store, const ModelConfig& c, const ModelOptions& options) {
  const TensorNames names = NamesFor(store, c);
  SF_ASSIGN_OR_RETURN(const int output_block, CoarsestBlock(store, c, names, names.o, std::nullopt));
  SF_ASSIGN_OR_RETURN(const int down_block, CoarsestBlock(store, c, names, names.down, false));
  int expert_block = 1;
  for (int l = 0; l < static_cast<int>(c.layers.size()); ++l) {
    if (!c.layers[l].sparse) continue;
    SF_ASSIGN_OR_RETURN(const int block, ExpertTensors(store, c, names).DownBlock(l));
    expert_block = std::max(expert_block, block);
  }
  const bool shared = c.moe.shared_intermediate > 0;
  int shared_block = 1;
  if (shared) {
    SF_ASSIGN_OR_RETURN(shared_block, CoarsestBlock(store, c, names, names.shared_down, true));
  }
  ModelShape shape{.hidden = c.hidden,
                   .vocab = c.vocab,
                   .intermediate = c.intermediate,
                   .expert_intermediate = c.moe.intermediate,
                   .shared_intermediate = c.moe.shared_intermediate,
                   .heads = c.heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.v_head_dim(),
                   .k_dim = c.k_dim(),
                   .v_dim = c.v_dim(),
                   .v_in_k = c.latent.used(),
                   .experts = c.moe.experts,
                   .top_k = c.moe.top_k,
                   .norm_across_heads = c.qk_norm == QkNorm::kWholeVector,
                   .numerics = options.numerics,
                   .kv_element_bytes = options.act == ActDType::kF32 ? 4 : 2,
                   .attention_chunk = options.attention_chunk,
                   // int8 codes are made of a whole row's fp32 values.
                   .dispatch_element_bytes = options.act == ActDType::kBF16 ? 2 : 4,
                   .combine_element_bytes = options.act == ActDType::kF32 ? 4 : 2};
  bool any_dense = false, any_sparse = false;
  for (const LayerConfig& layer : c.layers) {
    shape.sparse.push_back(layer.sparse);
    shape.windows.push_back(layer.window);
    (layer.sparse ? any_sparse : any_dense) = true;
  }
  // In fast mode a share is one sum, so that the smallest pieces can be dealt.
  const bool fast = options.numerics == Numerics::kFast;
  const int leaves = fast ? std::numeric_limits<int>::max() : options.reduction_leaves;
  shape.output_units = OutputProjectionLeaves(c.heads, c.v_head_dim(), fast ? c.heads : leaves, output_block);
  if (any_dense) shape.down_units = DownProjectionLeaves(c.intermediate, leaves, down_block);
  if (any_sparse) shape.expert_down_units = DownProjectionLeaves(c.moe.intermediate, leaves, expert_block);
  if (any_sparse && shared) shape.shared_down_units = DownProjectionLeaves(c.moe.shared_intermediate, leaves, shared_block);
  return shape;
}

}  // namespace sixfold
