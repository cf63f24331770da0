#include "model/expert_block.h"

#include <algorithm>

#include "base/check.h"
#include "model/expert_ffn.h"
#include "model/layer_steps.h"
#include "model/shared_expert.h"
#include "moe/gate.h"

namespace sixfold {

namespace {

// slot_experts and slot_weights [rows.size(), top_k] for these rows of normed.
void Route(ForwardContext& c, const LayerWeights& w, size_t sparse_index, Share rows) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  c.matmul.Prepare(s.normed.data() + rows.begin * c.config.hidden, rows.size(), c.config.hidden, w.router.leaves, ActDType::kF32,
                   {}, &s.a);
  const MatMulTask product = Product(s.a, w.router, &s.router_logits);
  c.matmul.Run({&product, 1});
  AddBias(c, &s.router_logits, rows.size(), w.router_bias);
  s.slot_experts.resize(rows.size() * moe.top_k);
  s.slot_weights.resize(rows.size() * moe.top_k);
  for (int64_t r = 0; r < rows.size(); ++r) {
    const std::span<const float> logits(&s.router_logits[r * moe.experts], moe.experts);
    int32_t* experts = &s.slot_experts[r * moe.top_k];
    float* weights = &s.slot_weights[r * moe.top_k];
    const int32_t* given = nullptr;
    if (c.forced != nullptr) given = &c.forced->experts[sparse_index][(c.batch_row + c.row_numbers[rows.begin + r]) * moe.top_k];
    if (given != nullptr && *given != kChosenByGate) {
      std::copy_n(given, moe.top_k, experts);
      WeighExperts(moe, logits, experts, weights);
    } else {
      ChooseExperts(moe, logits, w.choice_bias, experts, weights);
    }
  }
}

// Counts, and records when asked, the routes of those rows that this rank answers for: each row is one rank's. slots: routes of
// rows from `first` on.
void NoteRoutes(ForwardContext& c, size_t sparse_index, int64_t first) {
  const int64_t top_k = c.config.moe.top_k;
  const Share own = c.layout.DispatchRows(c.rows, c.own.tp);
  const auto slots = std::span(c.s.slot_experts).subspan((own.begin - first) * top_k, own.size() * top_k);
  const size_t local = sparse_index - c.first_sparse;
  int64_t* counts = c.expert_tokens.data() + static_cast<int64_t>(local) * c.config.moe.experts;
  for (const int32_t e : slots) ++counts[e];
  if (c.record == nullptr) return;
  std::vector<std::vector<int32_t>>& layers = c.record->experts;
  layers.resize(std::max(layers.size(), local + 1));
  layers[local].insert(layers[local].end(), slots.begin(), slots.end());
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
}

// expert_out [slots of own rows, hidden]: the sums of all ranks' parts; expert_place maps a slot of own rows to its place.
Status SumExperts(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const KCut& cut = c.layout.expert_down_cut();
  const int64_t top_k = c.config.moe.top_k, hidden = c.config.hidden;
  if (!c.layout.sequence_parallel()) {
    s.expert_place = s.expert_slots;
    if (c.trace != nullptr) {
      std::vector<trace::RowRef> rows;
      for (const int32_t row : s.expert_rows) rows.push_back(c.trace->Own(row));
      c.trace->CarryItems(trace::Phase::kExpertSum, hidden * kFloatBytes, std::move(rows));
    }
    return SumParts(c, cut.tree, top_k, &s.expert_parts, &s.expert_out);
  }
  // Rows are shared out: the parts must lie by row.
  const auto slots = static_cast<int64_t>(s.expert_slots.size());
  s.partials.resize(s.expert_parts.size());
  for (size_t node = 0; node < cut.node_k[c.own.etp].size(); ++node) {
    const int64_t base = static_cast<int64_t>(node) * slots;
    for (int64_t i = 0; i < slots; ++i) {
      std::copy_n(&s.expert_parts[(base + s.expert_slots[i]) * hidden], hidden, &s.partials[(base + i) * hidden]);
    }
  }
  s.expert_place.resize(c.own_rows.size() * top_k);
  for (size_t i = 0; i < s.expert_place.size(); ++i) s.expert_place[i] = static_cast<int32_t>(i);
  CarryRows(c, trace::Phase::kExpertSum, top_k * hidden * kFloatBytes);
  return SumParts(c, cut.tree, top_k, &s.partials, &s.expert_out);
}

// Expert outputs cross ranks in the activation dtype, so they are rounded to it where they do not cross, too.
CombineArgs::Rounding RoundingOf(const ForwardContext& c) {
  return c.act == ActDType::kF32 ? CombineArgs::Rounding::kNone : CombineArgs::Rounding::kBF16;
}

// x += the slots of own rows, weighted and added in slot order.
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
                 .rounding = RoundingOf(c),
                 .out = s.out.data()});
  c.ops.Add(s.x.data(), s.out.data(), rows * c.config.hidden);
}

// Every rank has a part of every expert, and the ranks that share the rows share the experts.
Status SumInPlace(ForwardContext& c, const LayerWeights& w, size_t sparse_index) {
  SF_RETURN_IF_ERROR(Norm(c, w.ffn_norm, trace::Phase::kFfnGather));
  Route(c, w, sparse_index, {0, c.rows});
  NoteRoutes(c, sparse_index, 0);
  GroupByExpert(c);
  RunExperts(c, w, {.x = c.s.normed.data(), .rows = c.s.expert_rows, .begin = c.s.expert_begin});
  SF_RETURN_IF_ERROR(SumExperts(c));
  const int64_t top_k = c.config.moe.top_k;
  const auto experts = std::span(c.s.slot_experts).subspan(c.own_rows.begin * top_k, c.own_rows.size() * top_k);
  AddExpertDownBias(c, w, experts, c.s.expert_place, c.s.expert_out.data());
  CombineExperts(c);
  return OkStatus();
}

// expert_begin [the rank's experts + 1]: where the slots of each begin in the work.
void GroupWork(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  const std::span<const ExpertSlot> work = c.exchange->work();
  s.expert_begin.assign(w.expert_ids.size() + 1, 0);
  size_t local = 0;
  for (const ExpertSlot& slot : work) {
    while (w.expert_ids[local] != slot.expert) ++local;
    ++s.expert_begin[local + 1];
  }
  for (size_t e = 0; e + 1 < s.expert_begin.size(); ++e) s.expert_begin[e + 1] += s.expert_begin[e];
}

// expert_out: complete outputs of this rank's share of the work.
Status SumWork(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const TreeCut& tree = c.layout.expert_down_cut().tree;
  if (c.comm.etp == nullptr) {
    SF_CHECK_EQ(tree.total_nodes(), 1);
    std::swap(s.expert_parts, s.expert_out);
    return OkStatus();
  }
  const int64_t hidden = c.config.hidden;
  const Bounds bounds = Times(RowBounds(static_cast<int64_t>(c.exchange->work().size()), c.comm.etp->size()), hidden);
  s.expert_out.resize(c.exchange->own_work().size() * hidden);
  if (c.trace != nullptr) c.trace->CarryItems(trace::Phase::kExpertSum, hidden * kFloatBytes, c.exchange->RowsOfWork());
  return c.comm.etp->ReduceScatter(ReduceType::kF32, tree, bounds, s.expert_parts.data(), s.expert_out.data());
}

// Each row goes from one rank to the ranks that have its experts, and comes back to be summed in slot order.
Status SendToExperts(ForwardContext& c, const LayerWeights& w, int layer, size_t sparse_index) {
  ForwardScratch& s = c.s;
  const int64_t hidden = c.config.hidden;
  const Share rows = c.layout.DispatchRows(c.rows, c.own.tp);
  if (c.config.moe.shared_intermediate > 0) {
    SF_RETURN_IF_ERROR(Norm(c, w.ffn_norm, trace::Phase::kFfnGather));  // shared experts want all rows
  } else {
    NormRows(c, w.ffn_norm, rows);
  }
  Route(c, w, sparse_index, rows);
  NoteRoutes(c, sparse_index, rows.begin);
  ExpertExchange& exchange = *c.exchange;
  SF_RETURN_IF_ERROR(exchange.Dispatch(c.planners[layer - c.own.layers.begin], c.member_rows, s.normed.data() + rows.begin * hidden,
                                       s.slot_experts.data(), s.slot_weights.data()));
  GroupWork(c, w);
  RunExperts(c, w, {.x = exchange.rows().data(), .rows = exchange.work_rows(), .begin = s.expert_begin});
  SF_RETURN_IF_ERROR(SumWork(c));
  if (c.config.moe.bias) {
    s.work_experts.clear();
    for (int64_t i = exchange.own_work().begin; i < exchange.own_work().end; ++i) {
      s.work_experts.push_back(exchange.work()[i].expert);
    }
    AddExpertDownBias(c, w, s.work_experts, {}, s.expert_out.data());
  }
  SF_RETURN_IF_ERROR(exchange.Combine(std::span(s.expert_out).first(exchange.own_work().size() * hidden)));
  const bool gather = c.comm.tp != nullptr && !c.layout.sequence_parallel();
  const int64_t first = gather ? rows.begin : 0;
  s.out.resize((gather ? c.rows : rows.size()) * hidden);
  c.ops.Combine({.slots = exchange.terms(),
                 .slot_place = exchange.places().data(),
                 .weights = exchange.weights().data(),
                 .rows = rows.size(),
                 .top_k = c.config.moe.top_k,
                 .n = hidden,
                 .rounding = RoundingOf(c),
                 .out = s.out.data() + first * hidden});
  if (gather) {
    CarryRows(c, trace::Phase::kCombineGather, hidden * kFloatBytes);
    SF_RETURN_IF_ERROR(c.comm.tp->AllGather(Times(RowsOf(c), hidden * kFloatBytes), BytesOf(s.out)));
  }
  c.ops.Add(s.x.data(), s.out.data(), static_cast<int64_t>(s.out.size()));
  return OkStatus();
}

}  // namespace

Status SparseBlock(ForwardContext& c, int layer, size_t sparse_index) {
  const LayerWeights& w = c.weights.layers[layer - c.own.layers.begin];
  SF_RETURN_IF_ERROR(c.exchange == nullptr ? SumInPlace(c, w, sparse_index) : SendToExperts(c, w, layer, sparse_index));
  return SharedExpert(c, w);
}

}  // namespace sixfold
