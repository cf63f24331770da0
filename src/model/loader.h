// From named tensors in files to packed weights: the only place that knows tensor names.
#pragma once

#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/matmul.h"
#include "model/config.h"
#include "model/model.h"
#include "tensor/matrix_view.h"
#include "weights/weight_store.h"

namespace sixfold {

struct ExpertWeights {
  PackedMatrix gate, up, down;   // [moe intermediate, hidden] twice, [hidden, moe intermediate]
};

// Norms and biases as fp32; a missing bias is empty.
struct LayerWeights {
  std::vector<float> attention_norm, ffn_norm;   // [hidden]
  std::vector<float> q_norm, k_norm;             // [head_dim], or [heads * head_dim], [kv_heads * head_dim]
  std::vector<float> q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
  PackedMatrix q, k, v, o;                       // q, k with rows in half-split rotation order
  PackedMatrix gate, up, down;                   // dense layers
  PackedMatrix router;                           // sparse layers, fp32 activations
  std::vector<ExpertWeights> experts;
};

struct ModelWeights {
  MatrixView embedding;                          // [vocab, hidden], borrowed from the store
  std::vector<float> final_norm;
  PackedMatrix head;                             // [vocab, hidden]
  std::vector<LayerWeights> layers;
  int64_t packed_bytes = 0;
};

// First compares every tensor of the store with what the config implies (missing, extra, wrong shape or type are errors
// that name file, tensor, expected and got), then packs.
Result<ModelWeights> LoadWeights(const WeightStore& store, const ModelConfig& config, const ModelOptions& options,
                                 ThreadPool& pool);

// The check alone, for commands that compute nothing.
Status CheckTensors(const WeightStore& store, const ModelConfig& config);

}  // namespace sixfold
