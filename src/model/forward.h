// One pass over the layers, written over a layout: every size here is this rank's share, and the two places where tensor
// parallelism adds partial sums (after o and after down) are products over leaves.
#pragma once

#include <span>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "kv/storage.h"
#include "model/config.h"
#include "model/loader.h"
#include "model/step_batch.h"

namespace sixfold {

// Memory of a pass, kept between passes. All matrices are row-major fp32.
struct ForwardScratch {
  std::vector<float> x, normed;                 // [rows, hidden]: the residual stream, and its norm
  std::vector<float> q, k, v, attention;        // [rows, heads * head_dim], [rows, kv_heads * head_dim] twice, as q
  std::vector<float> gate, up, out;             // [rows, intermediate] twice, [rows, hidden]
  std::vector<float> cos, sin, logits;
  std::vector<int64_t> positions;
  std::vector<int32_t> row_numbers;             // 0, 1, 2 …: rows of cos and sin
  std::vector<AttentionSequence> sequences;
  Activations a, a_wide;
  // Experts: routes of all rows, rows of each expert, and the expert's own activations.
  std::vector<float> router_logits, slot_weights, expert_gate, expert_up, expert_out;
  std::vector<int32_t> slot_experts, expert_rows, expert_slots, expert_begin;
  std::vector<Activations> expert_in, expert_mid;
  std::vector<MatMulTask> tasks;
};

// What a pass needs beside its batch. Thread rule: one step thread.
struct ForwardContext {
  const ModelConfig& config;
  const ModelWeights& weights;
  ActDType act;
  int attention_chunk;
  std::span<const float> inverse_frequencies;
  float rotation_magnitude;
  MatMul& matmul;
  Ops& ops;
  ThreadPool& pool;
  ForwardScratch& s;
  ExpertRoutes* record = nullptr;          // filled when set
  const ExpertRoutes* forced = nullptr;    // replaces the gate's choice when set
};

// Logits [sum of logit_rows][vocab], in s.logits.
std::span<const float> Forward(ForwardContext& context, const StepBatch& batch, KvStorage& kv);

}  // namespace sixfold
