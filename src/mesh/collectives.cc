#include "mesh/collectives.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sixfold {

namespace {

constexpr int64_t kFloat = 4;  // bytes: residual stream, partial sums and logits cross ranks in fp32

std::vector<int64_t> Times(std::vector<int64_t> bounds, int64_t factor) {
  for (int64_t& b : bounds) b *= factor;
  return bounds;
}

// Adds what one group's operations send. The group's links are looked up once.
class GroupPlan {
 public:
  GroupPlan(const Layout& layout, std::vector<int> members, Axis axis, Ledger* out)
      : layout_(layout), members_(std::move(members)), axis_(axis), out_(out) {
    for (size_t a = 0; a < members_.size(); ++a) {
      for (size_t b = a + 1; b < members_.size(); ++b) has_link_[static_cast<int>(LinkOf(a, b))] = true;
    }
  }

  int size() const { return static_cast<int>(members_.size()); }

  // Member `to` gets its slice of every node of the others.
  void ReduceScatter(const TreeCut& cut, const std::vector<int64_t>& bounds, CommOp op = CommOp::kReduceScatter) {
    if (size() < 2) return;
    Count(op);
    for (int from = 0; from < size(); ++from) {
      const auto nodes = static_cast<int64_t>(cut.nodes[from].size());
      for (int to = 0; to < size(); ++to) Send(op, from, to, nodes * (bounds[to + 1] - bounds[to]) * kFloat);
    }
  }

  void AllGather(const std::vector<int64_t>& bounds, CommOp op = CommOp::kAllGather, bool count = true) {
    if (size() < 2) return;
    if (count) Count(op);
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) Send(op, from, to, (bounds[from + 1] - bounds[from]) * kFloat);
    }
  }

  void AllReduce(const TreeCut& cut, int64_t elements) {
    const std::vector<int64_t> bounds = RowBounds(elements, size());
    ReduceScatter(cut, bounds, CommOp::kAllReduce);
    AllGather(bounds, CommOp::kAllReduce, false);
  }

 private:
  LinkClass LinkOf(size_t a, size_t b) const { return layout_.cluster().LinkBetween(members_[a], members_[b]).link; }

  void Count(CommOp op) {
    for (int link = 0; link < kLinkClassCount; ++link) {
      if (has_link_[link]) ++(*out_)[{axis_, op, static_cast<LinkClass>(link)}].count;
    }
  }

  void Send(CommOp op, int from, int to, int64_t bytes) {
    if (from != to && bytes > 0) (*out_)[{axis_, op, LinkOf(from, to)}].bytes += bytes;
  }

  const Layout& layout_;
  std::vector<int> members_;
  Axis axis_;
  Ledger* out_;
  std::array<bool, kLinkClassCount> has_link_{};
};

// The cut of a sum in which every member has one part and at most one is not zero.
TreeCut OnePartEach(int members) { return CutTree(members, members); }

void PlanLayer(const Layout& layout, int layer, int64_t rows, GroupPlan& tp) {
  const ModelShape& m = layout.shape();
  const bool sp = layout.sequence_parallel();
  const std::vector<int64_t> row_bounds = RowBounds(rows, layout.tp());
  const auto reduce = [&](const KCut& cut, int64_t vectors_a_row) {
    if (sp) {
      tp.ReduceScatter(cut.tree, Times(row_bounds, vectors_a_row * m.hidden));
    } else {
      tp.AllReduce(cut.tree, rows * vectors_a_row * m.hidden);
    }
  };
  if (sp) tp.AllGather(Times(row_bounds, m.hidden));
  if (m.norm_across_heads) {
    std::vector<int64_t> q = {0}, k = {0};
    for (int t = 0; t < layout.tp(); ++t) {
      const RankShard shard = layout.Shard(layout.RankAt(t, 0, 0));
      q.push_back(q.back() + shard.heads.size() * rows);
      k.push_back(k.back() + shard.kv_heads.size() * rows);
    }
    tp.AllGather(q);
    tp.AllGather(k);
  }
  reduce(layout.output_cut(), 1);
  const bool dispatches = m.sparse[layer] && layout.dispatches();
  const bool shared = m.sparse[layer] && m.shared_intermediate > 0;
  // Rows that travel to experts are normalised where they are; shared experts want them all.
  if (sp && (shared || !dispatches)) tp.AllGather(Times(row_bounds, m.hidden));
  if (dispatches) {
    if (!sp) tp.AllGather(Times(row_bounds, m.hidden));  // each rank combined some rows
  } else if (m.sparse[layer]) {
    reduce(layout.expert_down_cut(), m.top_k);
  } else {
    reduce(layout.down_cut(), 1);
  }
  if (shared) reduce(layout.shared_down_cut(), 1);
}

// Rows of each member of a dispatch group in one micro-batch.
std::vector<int64_t> RowsOfMembers(const Layout& layout, const std::vector<int>& group, const StepShape& step, size_t micro_batch) {
  std::vector<int64_t> rows;
  for (const int rank : group) {
    const RankShard shard = layout.Shard(rank);
    rows.push_back(layout.DispatchRows(step.replicas[shard.dp][micro_batch].rows, shard.tp).size());
  }
  return rows;
}

// What the experts of one layer and dispatch group move in one micro-batch. first_rows: [dp] of the micro-batch in its step.
void PlanExperts(const Layout& layout, int layer, int sparse_index, const std::vector<int>& group, const StepShape& step,
                 size_t micro_batch, std::span<const int64_t> first_rows, const StepRoutes* routes, Ledger* out) {
  const ModelShape& m = layout.shape();
  const DispatchPlanner planner = layout.PlannerFor(layer, group);
  const std::vector<int64_t> rows = RowsOfMembers(layout, group, step, micro_batch);
  GroupPlan ranks(layout, group, Axis::kEp, out);
  std::vector<int64_t> bounds = {0};
  for (const int64_t r : rows) bounds.push_back(bounds.back() + r);
  ranks.AllGather(Times(bounds, m.top_k * RouteWords(layout.combine_form())), CommOp::kRoutes);
  std::vector<int64_t> slots;  // [ep]
  if (routes == nullptr) {
    AddTo(out, planner.ExpectedTraffic(rows, ExpertRowBytes(m)));
    for (int ep = 0; ep < planner.group().ep(); ++ep) {
      slots.push_back(ShareOf(bounds.back() * m.top_k, planner.group().ep(), ep).size());
    }
  } else {
    std::vector<std::span<const int32_t>> of;
    for (size_t i = 0; i < group.size(); ++i) {
      const RankShard shard = layout.Shard(group[i]);
      const Share own = layout.DispatchRows(step.replicas[shard.dp][micro_batch].rows, shard.tp);
      of.push_back(std::span(routes->replicas[shard.dp][sparse_index])
                       .subspan((first_rows[shard.dp] + own.begin) * m.top_k, own.size() * m.top_k));
    }
    const DispatchPlan plan = planner.Plan(of);
    AddTo(out, planner.TrafficOf(plan, ExpertRowBytes(m)));
    for (const std::vector<ExpertSlot>& work : plan.work) slots.push_back(static_cast<int64_t>(work.size()));
  }
  for (int ep = 0; ep < planner.group().ep(); ++ep) {
    GroupPlan etp(layout, layout.EtpGroup(group[ep * planner.group().etp]), Axis::kEtp, out);
    etp.ReduceScatter(layout.expert_down_cut().tree, Times(RowBounds(slots[ep], etp.size()), m.hidden));
  }
}

void PlanAllExperts(const Layout& layout, const StepShape& step, const StepRoutes* routes, Ledger* out) {
  const ModelShape& m = layout.shape();
  std::vector<int64_t> first_rows(layout.dp(), 0);
  for (size_t batch = 0; batch < step.replicas.front().size(); ++batch) {
    int sparse_index = 0;
    for (int stage = 0; stage < layout.pp(); ++stage) {
      const Share layers = layout.LayersOf(stage);
      for (int layer = static_cast<int>(layers.begin); layer < layers.end; ++layer) {
        if (!m.sparse[layer]) continue;
        for (int edp = 0; edp < layout.expert_mesh().edp(); ++edp) {
          const int first = layout.expert_mesh().RankAt({.stage = stage, .edp = edp});
          PlanExperts(layout, layer, sparse_index, layout.DispatchGroup(first), step, batch, first_rows, routes, out);
        }
        ++sparse_index;
      }
    }
    for (int dp = 0; dp < layout.dp(); ++dp) first_rows[dp] += step.replicas[dp][batch].rows;
  }
}

void PlanSend(const Layout& layout, Axis axis, int from, int to, int64_t bytes, Ledger* out) {
  LedgerEntry& entry = (*out)[{axis, CommOp::kSend, layout.cluster().LinkBetween(from, to).link}];
  ++entry.count;
  entry.bytes += bytes;
}

void PlanMicroBatch(const Layout& layout, int dp, const MicroBatchShape& batch, Ledger* out) {
  const ModelShape& m = layout.shape();
  const std::vector<int64_t> row_bounds = RowBounds(batch.rows, layout.tp());
  const auto wanted = static_cast<int64_t>(batch.wanted.size());
  for (int stage = 0; stage < layout.pp(); ++stage) {
    GroupPlan tp(layout, layout.TpGroup(dp, stage), Axis::kTp, out);
    if (stage == 0) {
      const TreeCut cut = OnePartEach(layout.tp());
      if (layout.sequence_parallel()) {
        tp.ReduceScatter(cut, Times(row_bounds, m.hidden));
      } else {
        tp.AllReduce(cut, batch.rows * m.hidden);
      }
    }
    const Share layers = layout.LayersOf(stage);
    for (int64_t l = layers.begin; l < layers.end; ++l) PlanLayer(layout, static_cast<int>(l), batch.rows, tp);
    if (stage + 1 < layout.pp()) {
      for (int t = 0; t < layout.tp(); ++t) {
        const int64_t rows = layout.sequence_parallel() ? row_bounds[t + 1] - row_bounds[t] : batch.rows;
        PlanSend(layout, Axis::kPp, layout.RankAt(t, dp, stage), layout.RankAt(t, dp, stage + 1), rows * m.hidden * kFloat,
                 out);
      }
      continue;
    }
    if (layout.sequence_parallel()) tp.AllGather(Times(WantedBounds(batch.wanted, row_bounds), m.hidden));
    for (int t = 0; t < layout.tp(); ++t) {
      const int from = layout.RankAt(t, dp, stage);
      if (from == 0) continue;
      const Axis axis = dp > 0 ? Axis::kDp : stage > 0 ? Axis::kPp : Axis::kTp;
      PlanSend(layout, axis, from, 0, wanted * ShareOf(m.vocab, layout.tp(), t).size() * kFloat, out);
    }
  }
}

}  // namespace

std::vector<int64_t> RowBounds(int64_t rows, int members) {
  std::vector<int64_t> bounds = {0};
  for (int m = 0; m < members; ++m) bounds.push_back(ShareOf(rows, members, m).end);
  return bounds;
}

std::vector<int64_t> WantedBounds(std::span<const int32_t> wanted, std::span<const int64_t> row_bounds) {
  std::vector<int64_t> bounds;
  for (const int64_t bound : row_bounds) {
    bounds.push_back(std::lower_bound(wanted.begin(), wanted.end(), bound) - wanted.begin());
  }
  return bounds;
}

RowBytes ExpertRowBytes(const ModelShape& shape) {
  return {.dispatch = shape.hidden * shape.dispatch_element_bytes, .combine = shape.hidden * shape.combine_element_bytes};
}

Ledger PlanCollectives(const Layout& layout, const StepShape& step, const StepRoutes* routes) {
  SF_CHECK_EQ(static_cast<int>(step.replicas.size()), layout.dp());
  Ledger out;
  if (layout.dispatches()) PlanAllExperts(layout, step, routes, &out);
  for (int dp = 0; dp < layout.dp(); ++dp) {
    for (const MicroBatchShape& batch : step.replicas[dp]) PlanMicroBatch(layout, dp, batch, &out);
  }
  return out;
}

}  // namespace sixfold
