#include "model/expert_block.h"

#include <algorithm>

#include "model/expert_ffn.h"
#include "model/layer_steps.h"
#include "moe/gate.h"

namespace sixfold {

namespace {

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

// expert_out [slots of own rows, hidden]: the sums of all ranks' parts; expert_place maps a slot of own rows to its place.
Status SumExperts(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const KCut& cut = c.layout.expert_down_cut();
  const int64_t top_k = c.config.moe.top_k, hidden = c.config.hidden;
  if (!c.layout.sequence_parallel()) {
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

}  // namespace

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

}  // namespace sixfold
