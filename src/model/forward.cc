#include "model/forward.h"

#include <cmath>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "model/rope.h"
#include "moe/gate.h"

namespace sixfold {

namespace {

int64_t Rows(const StepBatch& batch) { return static_cast<int64_t>(batch.tokens.size()); }

// Embeddings into x; positions, rotation tables and attention rows of all sequences.
void Begin(ForwardContext& c, const StepBatch& batch) {
  ForwardScratch& s = c.s;
  const int64_t rows = Rows(batch);
  const int64_t hidden = c.config.hidden;
  s.x.resize(rows * hidden);
  c.pool.ParallelFor(rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) DequantizeRow(c.weights.embedding, batch.tokens[r], &s.x[r * hidden]);
  });
  s.positions.clear();
  s.sequences.clear();
  for (const StepSequence& sequence : batch.sequences) {
    s.sequences.push_back({.first_row = static_cast<int64_t>(s.positions.size()),
                           .rows = sequence.rows,
                           .first_position = sequence.first_position,
                           .pages = sequence.blocks.data()});
    for (int64_t r = 0; r < sequence.rows; ++r) s.positions.push_back(sequence.first_position + r);
  }
  SF_CHECK_EQ(static_cast<int64_t>(s.positions.size()), rows);
  while (static_cast<int64_t>(s.row_numbers.size()) < rows) {
    s.row_numbers.push_back(static_cast<int32_t>(s.row_numbers.size()));
  }
  FillRotation(c.inverse_frequencies, c.rotation_magnitude, s.positions, &s.cos, &s.sin);
}

void Norm(ForwardContext& c, int64_t rows, const std::vector<float>& weight) {
  const int64_t n = c.config.hidden;
  c.s.normed.resize(rows * n);
  c.ops.RmsNorm(c.s.x.data(), n, rows, n, weight.data(), c.config.norm_eps, c.s.normed.data(), n);
}

// One product with the prepared rows `a` into `out` [rows][n].
MatMulTask Product(const Activations& a, const PackedMatrix& w, std::vector<float>* out) {
  out->resize(a.rows * w.n);
  return {.a = &a, .w = &w, .out = out->data(), .out_stride = w.n};
}

void AddBias(ForwardContext& c, std::vector<float>* x, int64_t rows, const std::vector<float>& bias) {
  if (bias.empty()) return;
  const auto n = static_cast<int64_t>(bias.size());
  c.ops.AddBias(x->data(), n, rows, n, bias.data());
}

void NormHeads(ForwardContext& c, std::vector<float>* x, int64_t rows, int heads, const std::vector<float>& weight) {
  const int dim = c.config.head_dim;
  if (c.config.qk_norm == QkNorm::kPerHead) {
    c.ops.RmsNorm(x->data(), dim, rows * heads, dim, weight.data(), c.config.norm_eps, x->data(), dim);
  } else if (c.config.qk_norm == QkNorm::kWholeVector) {
    c.ops.RmsNormHeads(x->data(), rows, heads, dim, weight.data(), c.config.norm_eps);
  }
}

void Clip(ForwardContext& c, std::vector<float>* x, int64_t rows) {
  if (c.config.clip_qkv <= 0) return;
  const int64_t n = static_cast<int64_t>(x->size()) / rows;
  c.ops.Clamp(x->data(), n, rows, n, c.config.clip_qkv);
}

void Rotate(ForwardContext& c, std::vector<float>* x, int64_t rows, int heads) {
  const int dim = c.config.head_dim;
  c.ops.Rope(x->data(), int64_t{heads} * dim, rows, heads, dim, dim, c.s.row_numbers.data(), c.s.cos.data(),
             c.s.sin.data());
}

// x += attention(norm(x)).
void AttentionBlock(ForwardContext& c, int layer, int64_t rows, KvStorage& kv) {
  ForwardScratch& s = c.s;
  const LayerWeights& w = c.weights.layers[layer];
  Norm(c, rows, w.attention_norm);
  c.matmul.Prepare(s.normed.data(), rows, c.config.hidden, w.q.leaves, c.act, {}, &s.a);
  const MatMulTask qkv[] = {Product(s.a, w.q, &s.q), Product(s.a, w.k, &s.k), Product(s.a, w.v, &s.v)};
  c.matmul.Run(qkv);
  AddBias(c, &s.q, rows, w.q_bias);
  AddBias(c, &s.k, rows, w.k_bias);
  AddBias(c, &s.v, rows, w.v_bias);
  NormHeads(c, &s.q, rows, c.config.heads, w.q_norm);
  NormHeads(c, &s.k, rows, c.config.kv_heads, w.k_norm);
  Clip(c, &s.q, rows);
  Clip(c, &s.k, rows);
  Clip(c, &s.v, rows);
  Rotate(c, &s.q, rows, c.config.heads);
  Rotate(c, &s.k, rows, c.config.kv_heads);
  const KvLayerView pages = kv.Layer(layer);
  c.ops.WriteKv(s.k.data(), s.v.data(), s.sequences, pages);
  s.attention.resize(s.q.size());
  c.ops.Attention({.q = s.q.data(),
                   .out = s.attention.data(),
                   .heads = c.config.heads,
                   .kv = pages,
                   .scale = 1.0f / std::sqrt(static_cast<float>(c.config.head_dim)),
                   .chunk = c.attention_chunk,
                   .window = c.config.layers[layer].window,
                   .sequences = s.sequences});
  c.matmul.Prepare(s.attention.data(), rows, int64_t{c.config.heads} * c.config.head_dim, w.o.leaves, c.act, {},
                   &s.a_wide);
  const MatMulTask out = Product(s.a_wide, w.o, &s.out);
  c.matmul.Run({&out, 1});
  AddBias(c, &s.out, rows, w.o_bias);
  c.ops.Add(s.x.data(), s.out.data(), rows * c.config.hidden);
}

// x += down(silu(gate(norm(x))) * up(norm(x))).
void DenseBlock(ForwardContext& c, int layer, int64_t rows) {
  ForwardScratch& s = c.s;
  const LayerWeights& w = c.weights.layers[layer];
  Norm(c, rows, w.ffn_norm);
  c.matmul.Prepare(s.normed.data(), rows, c.config.hidden, w.gate.leaves, c.act, {}, &s.a);
  const MatMulTask wide[] = {Product(s.a, w.gate, &s.gate), Product(s.a, w.up, &s.up)};
  c.matmul.Run(wide);
  AddBias(c, &s.gate, rows, w.gate_bias);
  AddBias(c, &s.up, rows, w.up_bias);
  c.ops.SiluMul(s.gate.data(), s.up.data(), rows * c.config.intermediate, s.gate.data());
  c.matmul.Prepare(s.gate.data(), rows, c.config.intermediate, w.down.leaves, c.act, {}, &s.a_wide);
  const MatMulTask out = Product(s.a_wide, w.down, &s.out);
  c.matmul.Run({&out, 1});
  AddBias(c, &s.out, rows, w.down_bias);
  c.ops.Add(s.x.data(), s.out.data(), rows * c.config.hidden);
}

// slot_experts and slot_weights [rows, top_k] of a sparse layer; sparse_index counts sparse layers.
void Route(ForwardContext& c, const LayerWeights& w, int64_t rows, size_t sparse_index) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  c.matmul.Prepare(s.normed.data(), rows, c.config.hidden, w.router.leaves, ActDType::kF32, {}, &s.a_wide);
  const MatMulTask product = Product(s.a_wide, w.router, &s.router_logits);
  c.matmul.Run({&product, 1});
  s.slot_experts.resize(rows * moe.top_k);
  s.slot_weights.resize(rows * moe.top_k);
  for (int64_t r = 0; r < rows; ++r) {
    const std::span<const float> logits(&s.router_logits[r * moe.experts], moe.experts);
    int32_t* experts = &s.slot_experts[r * moe.top_k];
    float* weights = &s.slot_weights[r * moe.top_k];
    if (c.forced != nullptr) {
      const std::vector<int32_t>& given = c.forced->experts[sparse_index];
      std::copy_n(&given[r * moe.top_k], moe.top_k, experts);
      WeighExperts(moe, logits, experts, weights);
    } else {
      ChooseExperts(moe, logits, experts, weights);
    }
  }
  if (c.record != nullptr) c.record->experts.push_back(s.slot_experts);
}

// Rows of each expert: expert e has rows expert_rows[expert_begin[e] .. expert_begin[e+1]), in row order; expert_slots
// maps slot (row * top_k + s) to its place there.
void GroupByExpert(ForwardContext& c, int64_t rows) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  const int64_t slots = rows * moe.top_k;
  s.expert_begin.assign(moe.experts + 1, 0);
  for (int64_t i = 0; i < slots; ++i) ++s.expert_begin[s.slot_experts[i] + 1];
  for (int e = 0; e < moe.experts; ++e) s.expert_begin[e + 1] += s.expert_begin[e];
  s.expert_rows.resize(slots);
  s.expert_slots.resize(slots);
  std::vector<int32_t>& next = s.expert_begin;
  for (int64_t i = 0; i < slots; ++i) {
    const int32_t at = next[s.slot_experts[i]]++;
    s.expert_rows[at] = static_cast<int32_t>(i / moe.top_k);
    s.expert_slots[i] = at;
  }
  for (int e = moe.experts; e > 0; --e) next[e] = next[e - 1];
  next[0] = 0;
}

// expert_out [slots, hidden]: down(silu(gate) * up) of every slot, grouped by expert.
void RunExperts(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  const int64_t slots = static_cast<int64_t>(s.expert_rows.size());
  const int64_t width = moe.intermediate;
  s.expert_gate.resize(slots * width);
  s.expert_up.resize(slots * width);
  s.expert_out.resize(slots * c.config.hidden);
  s.expert_in.resize(moe.experts);
  s.expert_mid.resize(moe.experts);
  s.tasks.clear();
  for (int e = 0; e < moe.experts; ++e) {
    const int64_t begin = s.expert_begin[e], count = s.expert_begin[e + 1] - begin;
    if (count == 0) continue;
    c.matmul.Prepare(s.normed.data(), count, c.config.hidden, w.experts[e].gate.leaves, c.act,
                     std::span(s.expert_rows).subspan(begin, count), &s.expert_in[e]);
    s.tasks.push_back({&s.expert_in[e], &w.experts[e].gate, &s.expert_gate[begin * width], width});
    s.tasks.push_back({&s.expert_in[e], &w.experts[e].up, &s.expert_up[begin * width], width});
  }
  c.matmul.Run(s.tasks);
  c.ops.SiluMul(s.expert_gate.data(), s.expert_up.data(), slots * width, s.expert_gate.data());
  s.tasks.clear();
  for (int e = 0; e < moe.experts; ++e) {
    const int64_t begin = s.expert_begin[e], count = s.expert_begin[e + 1] - begin;
    if (count == 0) continue;
    c.matmul.Prepare(&s.expert_gate[begin * width], count, width, w.experts[e].down.leaves, c.act, {},
                     &s.expert_mid[e]);
    s.tasks.push_back({&s.expert_mid[e], &w.experts[e].down, &s.expert_out[begin * c.config.hidden], c.config.hidden});
  }
  c.matmul.Run(s.tasks);
}

// out[row]: slots weighted and added in slot order. Expert outputs cross ranks in the activation dtype, so they are rounded
// to it here too.
void CombineExperts(ForwardContext& c, int64_t rows) {
  ForwardScratch& s = c.s;
  s.out.resize(rows * c.config.hidden);
  c.ops.Combine({.slots = s.expert_out.data(),
                 .slot_place = s.expert_slots.data(),
                 .weights = s.slot_weights.data(),
                 .rows = rows,
                 .top_k = c.config.moe.top_k,
                 .n = c.config.hidden,
                 .rounding = c.act == ActDType::kF32 ? CombineArgs::Rounding::kNone : CombineArgs::Rounding::kBF16,
                 .out = s.out.data()});
}

// x += experts(norm(x)).
void SparseBlock(ForwardContext& c, int layer, int64_t rows, size_t sparse_index) {
  const LayerWeights& w = c.weights.layers[layer];
  Norm(c, rows, w.ffn_norm);
  Route(c, w, rows, sparse_index);
  GroupByExpert(c, rows);
  RunExperts(c, w);
  CombineExperts(c, rows);
  c.ops.Add(c.s.x.data(), c.s.out.data(), rows * c.config.hidden);
}

// Final norm and head over the rows whose logits are wanted.
std::span<const float> Logits(ForwardContext& c, const StepBatch& batch) {
  ForwardScratch& s = c.s;
  std::vector<int32_t>& wanted = s.expert_rows;
  wanted.clear();
  int32_t row = 0;
  for (const StepSequence& sequence : batch.sequences) {
    for (int64_t r = sequence.rows - sequence.logit_rows; r < sequence.rows; ++r) {
      wanted.push_back(row + static_cast<int32_t>(r));
    }
    row += static_cast<int32_t>(sequence.rows);
  }
  s.logits.clear();
  if (wanted.empty()) return s.logits;
  Norm(c, Rows(batch), c.weights.final_norm);
  c.matmul.Prepare(s.normed.data(), static_cast<int64_t>(wanted.size()), c.config.hidden, c.weights.head.leaves, c.act,
                   wanted, &s.a);
  const MatMulTask head = Product(s.a, c.weights.head, &s.logits);
  c.matmul.Run({&head, 1});
  return s.logits;
}

}  // namespace

std::span<const float> Forward(ForwardContext& c, const StepBatch& batch, KvStorage& kv) {
  const int64_t rows = Rows(batch);
  Begin(c, batch);
  size_t sparse_index = 0;
  for (int layer = 0; layer < static_cast<int>(c.config.layers.size()); ++layer) {
    AttentionBlock(c, layer, rows, kv);
    if (c.config.layers[layer].sparse) {
      SparseBlock(c, layer, rows, sparse_index++);
    } else {
      DenseBlock(c, layer, rows);
    }
  }
  return Logits(c, batch);
}

}  // namespace sixfold
