#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "mesh/collectives.h"
#include "model/rope.h"
#include "moe/gate.h"

namespace sixfold {

namespace {

std::byte* Bytes(std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); }

Bounds Times(Bounds bounds, int64_t factor) {
  for (int64_t& b : bounds) b *= factor;
  return bounds;
}

constexpr int64_t kFloat = sizeof(float);

bool SequenceParallel(const ForwardContext& c) { return c.layout.sequence_parallel(); }

// Shares of the micro-batch's rows among the tp group under sequence parallelism.
Bounds RowsOf(const ForwardContext& c) { return RowBounds(c.rows, c.layout.tp()); }

// `out`: this rank's rows of the sum over the group's parts, [vectors of a row][hidden] each. Without a group the one part is
// the sum.
Status SumParts(ForwardContext& c, ReduceType type, const TreeCut& cut, int64_t vectors, std::vector<float>* parts,
                std::vector<float>* out) {
  if (c.comm.tp == nullptr) {
    SF_CHECK_EQ(cut.total_nodes(), 1);
    std::swap(*parts, *out);
    return OkStatus();
  }
  const int64_t width = vectors * c.config.hidden;
  out->resize(c.own_rows.size() * width);
  if (SequenceParallel(c)) return c.comm.tp->ReduceScatter(type, cut, Times(RowsOf(c), width), parts->data(), out->data());
  return c.comm.tp->AllReduce(type, cut, c.rows * width, parts->data(), out->data());
}

// Embeddings of the tokens whose row this rank has, zeros for the others: all but one part of a row are zero.
Status Embed(ForwardContext& c, const StepBatch& batch) {
  ForwardScratch& s = c.s;
  const int64_t hidden = c.config.hidden;
  const Share vocab = c.own.vocab;
  s.partials.resize(c.rows * hidden);
  c.pool.ParallelFor(c.rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = &s.partials[r * hidden];
      if (batch.tokens[r] >= vocab.begin && batch.tokens[r] < vocab.end) {
        DequantizeRow(c.weights.embedding, batch.tokens[r], row);
      } else {
        std::fill(row, row + hidden, 0.0f);
      }
    }
  });
  return SumParts(c, ReduceType::kOr32, CutTree(c.layout.tp(), c.layout.tp()), 1, &s.partials, &s.x);
}

// Positions, rotation tables and attention rows of all sequences.
void Begin(ForwardContext& c, const StepBatch& batch) {
  ForwardScratch& s = c.s;
  s.positions.clear();
  s.sequences.clear();
  s.wanted.clear();
  for (const StepSequence& sequence : batch.sequences) {
    const auto first = static_cast<int64_t>(s.positions.size());
    s.sequences.push_back({.first_row = first,
                           .rows = sequence.rows,
                           .first_position = sequence.first_position,
                           .pages = sequence.blocks.data()});
    for (int64_t r = 0; r < sequence.rows; ++r) s.positions.push_back(sequence.first_position + r);
    for (int64_t r = sequence.rows - sequence.logit_rows; r < sequence.rows; ++r) {
      s.wanted.push_back(static_cast<int32_t>(first + r));
    }
  }
  SF_CHECK_EQ(static_cast<int64_t>(s.positions.size()), c.rows);
  while (static_cast<int64_t>(s.row_numbers.size()) < c.rows) {
    s.row_numbers.push_back(static_cast<int32_t>(s.row_numbers.size()));
  }
  FillRotation(c.inverse_frequencies, c.rotation_magnitude, s.positions, &s.cos, &s.sin);
}

// normed [rows, hidden] of all rows, from this rank's rows of x.
Status Norm(ForwardContext& c, const std::vector<float>& weight) {
  const int64_t n = c.config.hidden;
  c.s.normed.resize(c.rows * n);
  c.ops.RmsNorm(c.s.x.data(), n, c.own_rows.size(), n, weight.data(), c.config.norm_eps,
                c.s.normed.data() + c.own_rows.begin * n, n);
  if (!SequenceParallel(c)) return OkStatus();
  return c.comm.tp->AllGather(Times(RowsOf(c), n * kFloat), Bytes(c.s.normed));
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

// Norm over whole vectors whose heads are spread over the group: all sums of squares first. shares: [tp] heads of each.
Status NormWhole(ForwardContext& c, std::vector<float>* x, std::span<const Share> shares, int heads_total,
                 const std::vector<float>& weight) {
  ForwardScratch& s = c.s;
  const int dim = c.config.head_dim;
  const int heads = static_cast<int>(shares[c.own.tp].size());
  s.head_sums.resize(c.rows * heads_total);
  Bounds bounds = {0};
  for (const Share& share : shares) bounds.push_back(bounds.back() + share.size() * c.rows);
  s.all_head_sums.resize(bounds.back());
  c.ops.HeadSquares(x->data(), c.rows, heads, dim, s.all_head_sums.data() + bounds[c.own.tp]);
  if (c.comm.tp != nullptr) SF_RETURN_IF_ERROR(c.comm.tp->AllGather(Times(bounds, kFloat), Bytes(s.all_head_sums)));
  // A K/V head that several ranks hold comes several times, each time with the same bits.
  for (size_t m = 0; m < shares.size(); ++m) {
    const int64_t width = shares[m].size();
    for (int64_t r = 0; r < c.rows; ++r) {
      std::copy_n(&s.all_head_sums[bounds[m] + r * width], width, &s.head_sums[r * heads_total + shares[m].begin]);
    }
  }
  c.ops.ScaleHeads(x->data(), c.rows,
                   {.heads = heads,
                    .heads_total = heads_total,
                    .head_dim = dim,
                    .sums = s.head_sums.data(),
                    .weight = weight.data(),
                    .eps = c.config.norm_eps});
  return OkStatus();
}

Status NormQueriesAndKeys(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  const int dim = c.config.head_dim;
  if (c.config.qk_norm == QkNorm::kPerHead) {
    const int64_t heads = c.own.heads.size(), kv_heads = c.own.kv_heads.size();
    c.ops.RmsNorm(s.q.data(), dim, c.rows * heads, dim, w.q_norm.data(), c.config.norm_eps, s.q.data(), dim);
    c.ops.RmsNorm(s.k.data(), dim, c.rows * kv_heads, dim, w.k_norm.data(), c.config.norm_eps, s.k.data(), dim);
  } else if (c.config.qk_norm == QkNorm::kWholeVector) {
    std::vector<Share> heads, kv_heads;
    for (int t = 0; t < c.layout.tp(); ++t) {
      const RankShard shard = c.layout.Shard(c.layout.RankAt(t, 0, 0));
      heads.push_back(shard.heads);
      kv_heads.push_back(shard.kv_heads);
    }
    SF_RETURN_IF_ERROR(NormWhole(c, &s.q, heads, c.config.heads, w.q_norm));
    SF_RETURN_IF_ERROR(NormWhole(c, &s.k, kv_heads, c.config.kv_heads, w.k_norm));
  }
  return OkStatus();
}

void Clip(ForwardContext& c, std::vector<float>* x) {
  if (c.config.clip_qkv <= 0 || c.rows == 0) return;
  const int64_t n = static_cast<int64_t>(x->size()) / c.rows;
  c.ops.Clamp(x->data(), n, c.rows, n, c.config.clip_qkv);
}

void Rotate(ForwardContext& c, std::vector<float>* x, int64_t heads) {
  const int dim = c.config.head_dim;
  c.ops.Rope(x->data(), heads * dim, c.rows, static_cast<int>(heads), dim, dim, c.s.row_numbers.data(), c.s.cos.data(),
             c.s.sin.data());
}

// This rank's parts of a cut sum: partials [nodes, rows, hidden] of the products of in [rows, the rank's k].
void RunNodes(ForwardContext& c, const std::vector<float>& in, const KCut& cut, const CutMatrix& w) {
  ForwardScratch& s = c.s;
  const std::vector<Share>& nodes = cut.node_k[c.own.tp];
  const Share k = cut.k[c.own.tp];
  s.a_nodes.resize(std::max(s.a_nodes.size(), nodes.size()));
  s.partials.resize(static_cast<int64_t>(nodes.size()) * c.rows * c.config.hidden);
  s.tasks.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    c.matmul.Prepare(in.data() + nodes[i].begin - k.begin, c.rows, k.size(), cut.node_leaves[c.own.tp][i], c.act, {},
                     &s.a_nodes[i]);
    s.tasks.push_back({&s.a_nodes[i], &w[i], s.partials.data() + static_cast<int64_t>(i) * c.rows * c.config.hidden,
                       c.config.hidden});
  }
  c.matmul.Run(s.tasks);
}

// x += sum of the parts + bias.
Status AddSum(ForwardContext& c, const KCut& cut, const std::vector<float>& bias) {
  ForwardScratch& s = c.s;
  SF_RETURN_IF_ERROR(SumParts(c, ReduceType::kF32, cut.tree, 1, &s.partials, &s.out));
  AddBias(c, &s.out, c.own_rows.size(), bias);
  c.ops.Add(s.x.data(), s.out.data(), c.own_rows.size() * c.config.hidden);
  return OkStatus();
}

// x += attention(norm(x)).
Status AttentionBlock(ForwardContext& c, int layer, KvStorage& kv) {
  ForwardScratch& s = c.s;
  const auto local = static_cast<int>(layer - c.own.layers.begin);
  const LayerWeights& w = c.weights.layers[local];
  SF_RETURN_IF_ERROR(Norm(c, w.attention_norm));
  c.matmul.Prepare(s.normed.data(), c.rows, c.config.hidden, w.q.leaves, c.act, {}, &s.a);
  const MatMulTask qkv[] = {Product(s.a, w.q, &s.q), Product(s.a, w.k, &s.k), Product(s.a, w.v, &s.v)};
  c.matmul.Run(qkv);
  AddBias(c, &s.q, c.rows, w.q_bias);
  AddBias(c, &s.k, c.rows, w.k_bias);
  AddBias(c, &s.v, c.rows, w.v_bias);
  SF_RETURN_IF_ERROR(NormQueriesAndKeys(c, w));
  Clip(c, &s.q);
  Clip(c, &s.k);
  Clip(c, &s.v);
  Rotate(c, &s.q, c.own.heads.size());
  Rotate(c, &s.k, c.own.kv_heads.size());
  const KvLayerView pages = kv.Layer(local);
  c.ops.WriteKv(s.k.data(), s.v.data(), s.sequences, pages);
  s.attention.resize(s.q.size());
  const int group = c.config.heads / c.config.kv_heads;
  c.ops.Attention({.q = s.q.data(),
                   .out = s.attention.data(),
                   .heads = static_cast<int>(c.own.heads.size()),
                   .kv_group = group,
                   .group_offset = static_cast<int>(c.own.heads.begin - c.own.kv_heads.begin * group),
                   .kv = pages,
                   .scale = 1.0f / std::sqrt(static_cast<float>(c.config.head_dim)),
                   .chunk = c.attention_chunk,
                   .window = c.config.layers[layer].window,
                   .sequences = s.sequences});
  RunNodes(c, s.attention, c.layout.output_cut(), w.o);
  return AddSum(c, c.layout.output_cut(), w.o_bias);
}

// x += down(silu(gate(norm(x))) * up(norm(x))).
Status DenseBlock(ForwardContext& c, int layer) {
  ForwardScratch& s = c.s;
  const LayerWeights& w = c.weights.layers[layer - c.own.layers.begin];
  SF_RETURN_IF_ERROR(Norm(c, w.ffn_norm));
  if (c.own.intermediate.size() > 0) {
    c.matmul.Prepare(s.normed.data(), c.rows, c.config.hidden, w.gate.leaves, c.act, {}, &s.a);
    const MatMulTask wide[] = {Product(s.a, w.gate, &s.gate), Product(s.a, w.up, &s.up)};
    c.matmul.Run(wide);
    AddBias(c, &s.gate, c.rows, w.gate_bias);
    AddBias(c, &s.up, c.rows, w.up_bias);
    c.ops.SiluMul(s.gate.data(), s.up.data(), c.rows * c.own.intermediate.size(), s.gate.data());
  }
  RunNodes(c, s.gate, c.layout.down_cut(), w.down);
  return AddSum(c, c.layout.down_cut(), w.down_bias);
}

// slot_experts and slot_weights [rows, top_k] of a sparse layer; sparse_index counts the model's sparse layers.
void Route(ForwardContext& c, const LayerWeights& w, size_t sparse_index) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  c.matmul.Prepare(s.normed.data(), c.rows, c.config.hidden, w.router.leaves, ActDType::kF32, {}, &s.a);
  const MatMulTask product = Product(s.a, w.router, &s.router_logits);
  c.matmul.Run({&product, 1});
  s.slot_experts.resize(c.rows * moe.top_k);
  s.slot_weights.resize(c.rows * moe.top_k);
  for (int64_t r = 0; r < c.rows; ++r) {
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
void GroupByExpert(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  const int64_t slots = c.rows * moe.top_k;
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
  s.expert_order.resize(moe.experts);
  for (int e = 0; e < moe.experts; ++e) s.expert_order[e] = e;
  const auto count = [&](int32_t e) { return s.expert_begin[e + 1] - s.expert_begin[e]; };
  std::sort(s.expert_order.begin(), s.expert_order.end(),
            [&](int32_t a, int32_t b) { return count(a) != count(b) ? count(a) > count(b) : a < b; });
}

// expert_parts [nodes, slots, hidden]: this rank's parts of down(silu(gate) * up) of every slot, grouped by expert.
void RunExperts(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  const KCut& cut = c.layout.expert_down_cut();
  const std::vector<Share>& nodes = cut.node_k[c.own.tp];
  const auto slots = static_cast<int64_t>(s.expert_rows.size());
  const Share width = c.own.expert_intermediate;
  s.expert_parts.resize(static_cast<int64_t>(nodes.size()) * slots * c.config.hidden);
  if (width.size() == 0) return;
  s.expert_gate.resize(slots * width.size());
  s.expert_up.resize(slots * width.size());
  s.expert_in.resize(moe.experts);
  s.expert_mid.resize(moe.experts * nodes.size());
  s.tasks.clear();
  for (int i = 0; i < moe.experts; ++i) {
    const int32_t e = s.expert_order[i];
    const int64_t begin = s.expert_begin[e], count = s.expert_begin[e + 1] - begin;
    if (count == 0) break;
    c.matmul.Prepare(s.normed.data(), count, c.config.hidden, w.experts[e].gate.leaves, c.act,
                     std::span(s.expert_rows).subspan(begin, count), &s.expert_in[i]);
    s.tasks.push_back({&s.expert_in[i], &w.experts[e].gate, &s.expert_gate[begin * width.size()], width.size()});
    s.tasks.push_back({&s.expert_in[i], &w.experts[e].up, &s.expert_up[begin * width.size()], width.size()});
  }
  c.matmul.Run(s.tasks);
  c.ops.SiluMul(s.expert_gate.data(), s.expert_up.data(), slots * width.size(), s.expert_gate.data());
  s.tasks.clear();
  for (int i = 0; i < moe.experts; ++i) {
    const int32_t e = s.expert_order[i];
    const int64_t begin = s.expert_begin[e], count = s.expert_begin[e + 1] - begin;
    if (count == 0) break;
    for (size_t n = 0; n < nodes.size(); ++n) {
      Activations& mid = s.expert_mid[i * nodes.size() + n];
      c.matmul.Prepare(&s.expert_gate[begin * width.size() + nodes[n].begin - width.begin], count, width.size(),
                       cut.node_leaves[c.own.tp][n], c.act, {}, &mid);
      s.tasks.push_back({&mid, &w.experts[e].down[n],
                         &s.expert_parts[(static_cast<int64_t>(n) * slots + begin) * c.config.hidden], c.config.hidden});
    }
  }
  c.matmul.Run(s.tasks);
}

// expert_out [slots of own rows, hidden]: the sums of all ranks' parts; expert_place maps a slot of own rows to its place.
Status SumExperts(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const KCut& cut = c.layout.expert_down_cut();
  const int64_t top_k = c.config.moe.top_k, hidden = c.config.hidden;
  if (!SequenceParallel(c)) {
    s.expert_place = s.expert_slots;
    return SumParts(c, ReduceType::kF32, cut.tree, top_k, &s.expert_parts, &s.expert_out);
  }
  // Rows are shared out: the parts must lie by row.
  const auto slots = static_cast<int64_t>(s.expert_slots.size());
  s.partials.resize(s.expert_parts.size());
  for (size_t node = 0; node < cut.node_k[c.own.tp].size(); ++node) {
    const int64_t base = static_cast<int64_t>(node) * slots;
    for (int64_t i = 0; i < slots; ++i) {
      std::copy_n(&s.expert_parts[(base + s.expert_slots[i]) * hidden], hidden, &s.partials[(base + i) * hidden]);
    }
  }
  s.expert_place.resize(c.own_rows.size() * top_k);
  for (size_t i = 0; i < s.expert_place.size(); ++i) s.expert_place[i] = static_cast<int32_t>(i);
  return SumParts(c, ReduceType::kF32, cut.tree, top_k, &s.partials, &s.expert_out);
}

// x += the slots of own rows, weighted and added in slot order. Expert outputs cross ranks in the activation dtype, so they
// are rounded to it here too.
void CombineExperts(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const int64_t rows = c.own_rows.size();
  s.out.resize(rows * c.config.hidden);
  c.ops.Combine({.slots = s.expert_out.data(),
                 .slot_place = s.expert_place.data(),
                 .weights = s.slot_weights.data() + c.own_rows.begin * c.config.moe.top_k,
                 .rows = rows,
                 .top_k = c.config.moe.top_k,
                 .n = c.config.hidden,
                 .rounding = c.act == ActDType::kF32 ? CombineArgs::Rounding::kNone : CombineArgs::Rounding::kBF16,
                 .out = s.out.data()});
  c.ops.Add(s.x.data(), s.out.data(), rows * c.config.hidden);
}

// x += experts(norm(x)).
Status SparseBlock(ForwardContext& c, int layer, size_t sparse_index) {
  const LayerWeights& w = c.weights.layers[layer - c.own.layers.begin];
  SF_RETURN_IF_ERROR(Norm(c, w.ffn_norm));
  Route(c, w, sparse_index);
  GroupByExpert(c);
  RunExperts(c, w);
  SF_RETURN_IF_ERROR(SumExperts(c));
  CombineExperts(c);
  return OkStatus();
}

// Final norm and this rank's columns of the head over the wanted rows.
Status Logits(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const int64_t hidden = c.config.hidden;
  const auto wanted = static_cast<int64_t>(s.wanted.size());
  const Bounds row_bounds = SequenceParallel(c) ? RowsOf(c) : Bounds{0, c.rows};
  const Bounds bounds = WantedBounds(s.wanted, row_bounds);
  const int member = SequenceParallel(c) ? c.own.tp : 0;
  s.normed.resize(wanted * hidden);
  for (int64_t i = bounds[member]; i < bounds[member + 1]; ++i) {
    std::copy_n(&s.x[(s.wanted[i] - c.own_rows.begin) * hidden], hidden, &s.normed[i * hidden]);
  }
  float* mine = s.normed.data() + bounds[member] * hidden;
  c.ops.RmsNorm(mine, hidden, bounds[member + 1] - bounds[member], hidden, c.weights.final_norm.data(), c.config.norm_eps,
                mine, hidden);
  if (SequenceParallel(c)) SF_RETURN_IF_ERROR(c.comm.tp->AllGather(Times(bounds, hidden * kFloat), Bytes(s.normed)));
  s.logits.clear();
  if (wanted == 0 || c.own.vocab.size() == 0) return OkStatus();
  c.matmul.Prepare(s.normed.data(), wanted, hidden, c.weights.head.leaves, c.act, {}, &s.a);
  const MatMulTask head = Product(s.a, c.weights.head, &s.logits);
  c.matmul.Run({&head, 1});
  return OkStatus();
}

}  // namespace

Status ForwardStage(ForwardContext& c, const StepBatch& batch, KvStorage& kv) {
  c.rows = static_cast<int64_t>(batch.tokens.size());
  c.own_rows = SequenceParallel(c) ? ShareOf(c.rows, c.layout.tp(), c.own.tp) : Share{0, c.rows};
  Begin(c, batch);
  if (c.comm.transport != nullptr) {
    c.comm.transport->Progress({.step = c.step, .layer = static_cast<int>(c.own.layers.begin)});
  }
  if (c.own.first_stage) SF_RETURN_IF_ERROR(Embed(c, batch));
  SF_CHECK_EQ(static_cast<int64_t>(c.s.x.size()), c.own_rows.size() * c.config.hidden);
  size_t sparse_index = 0;
  for (int layer = 0; layer < static_cast<int>(c.own.layers.end); ++layer) {
    const bool sparse = c.config.layers[layer].sparse;
    if (layer >= c.own.layers.begin) {
      if (c.comm.transport != nullptr) c.comm.transport->Progress({.step = c.step, .layer = layer});
      SF_RETURN_IF_ERROR(AttentionBlock(c, layer, kv));
      SF_RETURN_IF_ERROR(sparse ? SparseBlock(c, layer, sparse_index) : DenseBlock(c, layer));
      if (c.observer != nullptr) {
        (*c.observer)({.layer = layer, .micro_batch = c.micro_batch, .first_row = c.own_rows.begin, .rows = c.s.x});
      }
    }
    sparse_index += sparse ? 1 : 0;
  }
  return c.own.last_stage ? Logits(c) : OkStatus();
}

}  // namespace sixfold
