// From named tensors in files to packed weights: the only place that knows tensor names.
#pragma once

#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/matmul.h"
#include "mesh/layout.h"
#include "model/config.h"
#include "model/model.h"
#include "tensor/matrix_view.h"
#include "weights/weight_store.h"

namespace sixfold {

// Of a matrix whose reduction tp cuts, the columns of one node of the tree each (mesh/layout.h, KCut).
using CutMatrix = std::vector<PackedMatrix>;

struct ExpertWeights {
  PackedMatrix gate, up;         // [moe intermediate, hidden]
  CutMatrix down;                // [hidden, moe intermediate]
  std::vector<float> gate_bias, up_bias, down_bias;  // empty without; down's is whole: it meets the complete sum
};

// One rank's share of a layer: every size here is the share's. Norms and biases as fp32; a missing bias is empty.
struct LayerWeights {
  std::vector<float> attention_norm, ffn_norm;   // [hidden]
  std::vector<float> q_norm, k_norm;             // [head_dim], or [heads * head_dim], [kv_heads * head_dim]
  std::vector<float> q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
  PackedMatrix q, k, v;                          // q, k with rows in half-split rotation order
  // Latent attention (mla_block.h) has q, or q_a, its norm and q (q_b); kv_a; and the two halves of kv_b, one of each a head.
  PackedMatrix q_a, kv_a;                        // [q_rank, hidden], [kv_rank + rope_dim, hidden]; not cut by tp
  std::vector<float> q_a_norm, kv_a_norm, q_a_bias, kv_a_bias;
  std::vector<PackedMatrix> absorb_k;            // [heads] of [kv_rank, nope_dim]: K's half, transposed
  std::vector<PackedMatrix> absorb_v;            // [heads] of [v_dim, kv_rank]: V's half
  CutMatrix o;
  PackedMatrix gate, up;                         // dense layers; without columns when the share is empty
  CutMatrix down;
  std::vector<float> sinks;                      // [heads], or empty
  PackedMatrix router;                           // sparse layers, fp32 activations
  std::vector<float> router_bias, choice_bias;   // [experts], or empty
  PackedMatrix shared_gate, shared_up;           // shared experts as one dense FFN
  CutMatrix shared_down;
  std::vector<int> expert_ids;                   // the rank's experts of this layer, ascending
  std::vector<ExpertWeights> experts;            // [expert_ids]
};

struct ModelWeights {
  MatrixView embedding;                          // first stage: [vocab, hidden], borrowed from the store, every row
  std::vector<float> final_norm;                 // last stage
  PackedMatrix head;                             // last stage: [vocab, hidden]
  std::vector<LayerWeights> layers;              // of the stage
  int64_t packed_bytes = 0;
};

// First compares every tensor of the store with what the config implies (missing, extra, wrong shape or type are errors
// that name file, tensor, expected and got), then reads and packs the rank's share alone.
Result<ModelWeights> LoadWeights(const WeightStore& store, const ModelConfig& config, const ModelOptions& options,
                                 const Layout& layout, int rank, ThreadPool& pool);

// What a rank's share of the weights takes, in bytes.
struct ShardBytes {
  int64_t packed = 0;   // ModelWeights::packed_bytes
  int64_t read = 0;     // of the files, to pack them: each once
  int64_t mapped = 0;   // the same in whole pages, as it is held
  int64_t vectors = 0;  // norms and biases

  int64_t total() const { return mapped + vectors; }
};

// The same walk as LoadWeights over headers alone: no tensor is read. The tensors have been checked (CheckTensors).
Result<ShardBytes> MeasureShard(const WeightStore& store, const ModelConfig& config, const ModelOptions& options,
                                const Layout& layout, int rank);

// [vocab, hidden], where it lies in the store.
Result<MatrixView> EmbeddingOf(const WeightStore& store, const ModelConfig& config);

}  // namespace sixfold
