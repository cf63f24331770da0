// One rank's pass over the layers of its stage, written over a layout: every size here is the rank's share. Tensor
// parallelism meets in two sums a layer (after o and after down), sequence parallelism turns each into a reduce-scatter and a
// gather, pipeline stages hand the residual stream on.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "kv/storage.h"
#include "mesh/layout.h"
#include "model/config.h"
#include "model/context_attention.h"
#include "model/loader.h"
#include "model/model.h"
#include "model/rank_comm.h"
#include "model/step_batch.h"
#include "moe/expert_exchange.h"
#include "trace/recorder.h"

namespace sixfold {

// Memory of a pass, kept between passes. All matrices are row-major fp32. "rows": what the rank's tp group has of the
// micro-batch (all, or a part under context parallelism). "own rows": under sequence parallelism this rank's share of them,
// else all of them.
struct ForwardScratch {
  std::vector<float> x;                         // [own rows, hidden]: the residual stream
  std::vector<float> normed;                    // [rows, hidden]: its norm
  std::vector<float> q, k, v, attention;        // [rows, heads * head_dim], [rows, kv_heads * head_dim] twice, as q
  // Latent attention: [rows, q_rank], [rows, kv_rank + rope_dim], [rows, heads * (kv_rank + rope_dim)]. Then `attention` is
  // [rows, heads * kv_rank] and v [rows, heads * v_dim].
  std::vector<float> q_narrow, latent, absorbed;
  std::vector<float> gate, up;                  // [rows, intermediate], of a dense FFN or of the shared experts
  std::vector<float> partials;                  // [nodes, rows, hidden]: this rank's parts of a cut sum
  std::vector<float> out;                       // [own rows, hidden]: the sum
  std::vector<float> head_sums, all_head_sums;  // [rows, heads] of this rank; one block of it a member
  std::vector<float> cos, sin;
  std::vector<float> logits;                    // [wanted rows, vocab share]
  std::vector<int64_t> positions;
  std::vector<int32_t> row_numbers;             // 0, 1, 2 …: rows of cos and sin
  std::vector<int32_t> wanted;                  // rows whose logits are wanted
  std::vector<AttentionSequence> sequences;     // runs of own rows
  Activations a;
  std::vector<Activations> a_nodes;             // one a node of a cut sum
  std::vector<Activations> a_heads;             // one a head, latent attention
  // Experts: routes of all rows, rows of each expert, and the expert's own activations.
  std::vector<float> router_logits, slot_weights, expert_gate, expert_up;
  std::vector<float> expert_parts;              // [nodes, slots, hidden], grouped by expert
  std::vector<float> expert_out;                // [slots of own rows, hidden]
  std::vector<int32_t> slot_experts, expert_rows, expert_slots, expert_begin, expert_place, work_experts;
  // By descending rows, so that the i-th never meets more than 1 / i of the slots: all steps together take little more
  // memory than one.
  std::vector<int32_t> expert_order;
  std::vector<Activations> expert_in, expert_mid;
  std::vector<MatMulTask> tasks;
};

// What a pass needs beside its batch. Thread rule: one step thread.
struct ForwardContext {
  const ModelConfig& config;
  const ModelWeights& weights;
  const Layout& layout;
  const RankShard& own;
  const RankComm& comm;
  ActDType act;
  int attention_chunk;
  std::span<const float> inverse_frequencies;
  float rotation_magnitude;
  MatMul& matmul;
  Ops& ops;
  ThreadPool& pool;
  ForwardScratch& s;
  int64_t step = 0;                        // for messages
  int micro_batch = 0;
  const std::function<void(const Model::Observation&)>* observer = nullptr;
  // Experts on other ranks: null when every rank has a part of every expert.
  ExpertExchange* exchange = nullptr;
  std::span<const DispatchPlanner> planners = {};  // [layers of the stage], those without experts unused
  std::span<int64_t> expert_tokens = {};   // [sparse layers of the stage, experts]: counted up
  // See Model::recorded_routes and ForceRoutes.
  ExpertRoutes* record = nullptr;
  const ExpertRoutes* forced = nullptr;
  // Null unless tracing. Whoever calls a communicator says first what its buffer holds: Carry… below.
  trace::Recorder* trace = nullptr;

  ContextAttention* context = nullptr;     // K/V on several ranks: null when this one has all

  // Of the micro-batch.
  int64_t batch_row = 0;                   // its first row in the step's batch
  std::span<const RowRun> runs = {};       // rows of it that this rank's tp group has, and their numbers in it
  std::span<const int32_t> row_numbers = {};
  std::span<const int64_t> member_rows = {};  // rows that each member of the exchange sends
  size_t first_sparse = 0;                 // sparse layers before the stage
  int64_t rows = 0;                        // of the tp group
  Share own_rows;                          // rows of x, of these
};

// One micro-batch through this rank's stage: context.runs of `batch`. The residual stream comes from the embedding (first stage) or is in s.x; it is
// left in s.x. On the last stage s.logits holds the wanted rows of this rank's vocabulary share, and s.wanted names them.
// Errors: the transport's.
Status ForwardStage(ForwardContext& context, const StepBatch& batch, KvStorage& kv);

}  // namespace sixfold
