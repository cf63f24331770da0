#include "mesh/collectives.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/ops.h"

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

  // bytes(from, to): of each message.
  template <typename Bytes>
  void Exchange(CommOp op, const Bytes& bytes) {
    if (size() < 2) return;
    Count(op);
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        if (from != to) Send(op, from, to, bytes(from, to));
      }
    }
  }

  void SendOne(int from, int to, int64_t bytes) {
    ++(*out_)[{axis_, CommOp::kSend, LinkOf(from, to)}].count;
    Send(CommOp::kSend, from, to, bytes);
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
      const RankShard shard = layout.Shard(layout.RankAt({.tp = t}));
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

// Row numbers of each micro-batch by who computes them: [dp][micro-batches][cp].
using RowsOfStep = std::vector<std::vector<std::vector<std::vector<int32_t>>>>;

RowsOfStep DealStep(const Layout& layout, const StepShape& step) {
  RowsOfStep rows;
  for (const std::vector<MicroBatchShape>& replica : step.replicas) {
    rows.emplace_back();
    for (const MicroBatchShape& batch : replica) {
      rows.back().emplace_back();
      for (const std::vector<RowRun>& runs : DealBatch(layout, batch)) rows.back().back().push_back(RowNumbers(runs));
    }
  }
  return rows;
}

// What the experts of one layer and dispatch group move in one micro-batch. first_rows: [dp] of the micro-batch in its step.
void PlanExperts(const Layout& layout, int layer, int sparse_index, const std::vector<int>& group, const RowsOfStep& rows_of,
                 size_t micro_batch, std::span<const int64_t> first_rows, const StepRoutes* routes, Ledger* out) {
  const ModelShape& m = layout.shape();
  const DispatchPlanner planner = layout.PlannerFor(layer, group);
  std::vector<std::vector<int32_t>> row_numbers;  // [members] of the replica's step
  std::vector<int64_t> rows, bounds = {0};
  for (const int rank : group) {
    const RankShard shard = layout.Shard(rank);
    const std::vector<int32_t>& all = rows_of[shard.dp][micro_batch][shard.cp];
    const Share own = layout.DispatchRows(static_cast<int64_t>(all.size()), shard.tp);
    row_numbers.emplace_back(all.begin() + own.begin, all.begin() + own.end);
    for (int32_t& row : row_numbers.back()) row += static_cast<int32_t>(first_rows[shard.dp]);
    rows.push_back(own.size());
    bounds.push_back(bounds.back() + own.size());
  }
  GroupPlan ranks(layout, group, Axis::kEp, out);
  ranks.AllGather(Times(bounds, m.top_k * RouteWords(layout.combine_form())), CommOp::kRoutes);
  std::vector<int64_t> slots;  // [ep]
  if (routes == nullptr) {
    AddTo(out, planner.ExpectedTraffic(rows, ExpertRowBytes(m)));
    for (int ep = 0; ep < planner.group().ep(); ++ep) {
      slots.push_back(ShareOf(bounds.back() * m.top_k, planner.group().ep(), ep).size());
    }
  } else {
    std::vector<std::vector<int32_t>> experts(group.size());
    for (size_t i = 0; i < group.size(); ++i) {
      const std::vector<int32_t>& of = routes->replicas[layout.Shard(group[i]).dp][sparse_index];
      for (const int32_t row : row_numbers[i]) {
        experts[i].insert(experts[i].end(), of.begin() + int64_t{row} * m.top_k, of.begin() + int64_t{row + 1} * m.top_k);
      }
    }
    const DispatchPlan plan = planner.Plan(std::vector<std::span<const int32_t>>(experts.begin(), experts.end()));
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
  const RowsOfStep rows = DealStep(layout, step);
  std::vector<int64_t> first_rows(layout.dp(), 0);
  for (size_t batch = 0; batch < step.replicas.front().size(); ++batch) {
    int sparse_index = 0;
    for (int stage = 0; stage < layout.pp(); ++stage) {
      const Share layers = layout.LayersOf(stage);
      for (int layer = static_cast<int>(layers.begin); layer < layers.end; ++layer) {
        if (!m.sparse[layer]) continue;
        for (int edp = 0; edp < layout.expert_mesh().edp(); ++edp) {
          const int first = layout.expert_mesh().RankAt({.stage = stage, .edp = edp});
          PlanExperts(layout, layer, sparse_index, layout.DispatchGroup(first), rows, batch, first_rows, routes, out);
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

// What the attention of one layer moves in a context group of one stage and tp coordinate.
class ContextTraffic {
 public:
  ContextTraffic(const Layout& layout, int rank, const MicroBatchShape& batch, Ledger* out)
      : layout_(layout), rule_(layout.context()), shard_(layout.Shard(rank)), batch_(batch),
        members_(layout.ContextGroup(rank)), group_(layout, members_, Axis::kCp, out), out_(out) {}

  void PlanLayer(int64_t window) {
    const ContextPlan plan = PlanContext(rule_, batch_.sequences, window);
    if (plan.prefills) {
      if (rule_.form == CpForm::kStriped && !rule_.by_token) MoveKeys();
      if (rule_.ulysses > 1) TransposeQueries(plan);
      for (const ContextSegment& segment : plan.segments) {
        if (rule_.form == CpForm::kAllGather) {
          group_.Exchange(CommOp::kAllGather, [&](int from, int) { return segment.blocks[from].pages * PageBytes(shard_.kv_heads); });
          continue;
        }
        if (rule_.ulysses > 1) TransposePages(segment);
        Ring(segment);
      }
      if (rule_.ulysses > 1) ReturnOutputs(plan);
    }
    if (!plan.queries.empty()) PassQueries(plan);
  }

 private:
  int64_t PageBytes(Share kv_heads) const { return layout_.PageBytes(kv_heads.size()); }

  int64_t PrefillRows(const ContextPlan& plan, int member) const {
    int64_t rows = 0;
    for (const RowRun& run : plan.rows[member]) rows += batch_.sequences[run.sequence].rows > 1 ? run.rows : 0;
    return rows;
  }

  void MoveKeys() {
    const auto moves = KeysToMove(rule_, batch_.sequences);
    const int64_t bytes = PageBytes(shard_.kv_heads) / kPageTokens;
    group_.Exchange(CommOp::kAllToAll, [&](int from, int to) { return RowsOf(moves[from][to]) * bytes; });
  }

  // bytes(member, other): of each message among the ranks that transpose heads with each other, by their cp coordinates.
  template <typename Bytes>
  void Near(const Bytes& bytes) {
    for (int first = 0; first < rule_.size; first += rule_.ulysses) {
      GroupPlan near(layout_, {members_.begin() + first, members_.begin() + first + rule_.ulysses}, Axis::kCp, out_);
      near.Exchange(CommOp::kAllToAll, [&](int from, int to) { return bytes(first + from, first + to); });
    }
  }

  int64_t HeadsOfPart() const { return shard_.heads.size() / rule_.ulysses; }
  Share KvHeadsOfPart(int member) const { return layout_.UlyssesHeads(shard_, member % rule_.ulysses).kv_heads; }

  void TransposeQueries(const ContextPlan& plan) {
    Near([&](int from, int) { return PrefillRows(plan, from) * HeadsOfPart() * KeyWidth() * kFloat; });
  }

  void TransposePages(const ContextSegment& segment) {
    Near([&](int from, int to) { return segment.blocks[from].pages * PageBytes(KvHeadsOfPart(to)); });
  }

  void ReturnOutputs(const ContextPlan& plan) {
    Near([&](int, int to) { return PrefillRows(plan, to) * HeadsOfPart() * ValueWidth() * kFloat; });
  }

  void Ring(const ContextSegment& segment) {
    for (int round = 0; round + 1 < rule_.ring(); ++round) {
      for (int r = 0; r < rule_.ring(); ++r) {
        const int part = (r + rule_.ring() - round) % rule_.ring(), next = (r + 1) % rule_.ring();
        int64_t pages = 0;
        for (int u = 0; u < rule_.ulysses; ++u) pages += segment.blocks[part * rule_.ulysses + u].pages;
        for (int u = 0; u < rule_.ulysses && pages > 0; ++u) {
          group_.SendOne(u + rule_.ulysses * r, u + rule_.ulysses * next, pages * PageBytes(KvHeadsOfPart(u)));
        }
      }
    }
  }

  int64_t KeyWidth() const { return layout_.shape().k_dim > 0 ? layout_.shape().k_dim : layout_.shape().head_dim; }
  int64_t ValueWidth() const { return layout_.shape().v_dim > 0 ? layout_.shape().v_dim : layout_.shape().head_dim; }

  void PassQueries(const ContextPlan& plan) {
    const int64_t heads = shard_.heads.size();
    group_.Exchange(CommOp::kAllToAll, [&](int from, int to) {
      int64_t bytes = 0;
      for (const ContextQuery& q : plan.queries) {
        if (q.home == from && !q.nodes[to].empty()) bytes += heads * KeyWidth() * kFloat;
      }
      return bytes;
    });
    group_.Exchange(CommOp::kAllToAll, [&](int from, int to) {
      int64_t nodes = 0;
      for (const ContextQuery& q : plan.queries) nodes += q.home == to ? static_cast<int64_t>(q.nodes[from].size()) : 0;
      return nodes * heads * (ValueWidth() + 2) * kFloat;
    });
  }

  const Layout& layout_;
  const ContextRule& rule_;
  const RankShard shard_;
  const MicroBatchShape& batch_;
  const std::vector<int> members_;
  GroupPlan group_;
  Ledger* out_;
};

// What one tp group of each stage does with its rows. cp: its context coordinate.
void PlanRows(const Layout& layout, int dp, int cp, int64_t rows, const std::vector<int32_t>& wanted_rows, Ledger* out) {
  const ModelShape& m = layout.shape();
  const std::vector<int64_t> row_bounds = RowBounds(rows, layout.tp());
  const auto wanted = static_cast<int64_t>(wanted_rows.size());
  for (int stage = 0; stage < layout.pp(); ++stage) {
    const auto rank_at = [&](int tp, int pp) { return layout.RankAt({.tp = tp, .cp = cp, .dp = dp, .pp = pp}); };
    GroupPlan tp(layout, layout.TpGroup(rank_at(0, stage)), Axis::kTp, out);
    const Share layers = layout.LayersOf(stage);
    for (int64_t l = layers.begin; l < layers.end; ++l) PlanLayer(layout, static_cast<int>(l), rows, tp);
    if (stage + 1 < layout.pp()) {
      for (int t = 0; t < layout.tp(); ++t) {
        const int64_t own = layout.sequence_parallel() ? row_bounds[t + 1] - row_bounds[t] : rows;
        PlanSend(layout, Axis::kPp, rank_at(t, stage), rank_at(t, stage + 1), own * m.hidden * kFloat, out);
      }
      continue;
    }
    if (layout.sequence_parallel()) tp.AllGather(Times(WantedBounds(wanted_rows, row_bounds), m.hidden));
    for (int t = 0; t < layout.tp(); ++t) {
      const int from = rank_at(t, stage);
      if (from == 0) continue;
      PlanSend(layout, LeaderAxis(layout, from), from, 0, wanted * ShareOf(m.vocab, layout.tp(), t).size() * kFloat, out);
    }
  }
}

void PlanMicroBatch(const Layout& layout, int dp, const MicroBatchShape& batch, Ledger* out) {
  const std::vector<std::vector<RowRun>> deal = DealBatch(layout, batch);
  for (int cp = 0; cp < layout.cp(); ++cp) {
    const std::vector<int32_t> numbers = RowNumbers(deal[cp]);
    PlanRows(layout, dp, cp, static_cast<int64_t>(numbers.size()), OwnWanted(batch.wanted, numbers), out);
  }
  if (layout.cp() == 1) return;
  for (int stage = 0; stage < layout.pp(); ++stage) {
    const Share layers = layout.LayersOf(stage);
    for (int tp = 0; tp < layout.tp(); ++tp) {
      ContextTraffic traffic(layout, layout.RankAt({.tp = tp, .dp = dp, .pp = stage}), batch, out);
      for (int64_t l = layers.begin; l < layers.end; ++l) traffic.PlanLayer(layout.shape().window(static_cast<int>(l)));
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

std::vector<int32_t> RowNumbers(std::span<const RowRun> runs) {
  std::vector<int32_t> numbers;
  for (const RowRun& run : runs) {
    for (int64_t i = 0; i < run.rows; ++i) numbers.push_back(static_cast<int32_t>(run.row + i * run.stride));
  }
  return numbers;
}

std::vector<std::vector<RowRun>> DealBatch(const Layout& layout, const MicroBatchShape& batch) {
  if (layout.cp() == 1) return {{RowRun{.rows = batch.rows}}};
  return DealRows(layout.context(), batch.sequences);
}

std::vector<int32_t> OwnWanted(std::span<const int32_t> wanted, std::span<const int32_t> numbers) {
  std::vector<int32_t> own;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (std::binary_search(wanted.begin(), wanted.end(), numbers[i])) own.push_back(static_cast<int32_t>(i));
  }
  return own;
}

Axis LeaderAxis(const Layout& layout, int rank) {
  const RankShard s = layout.Shard(rank);
  return s.dp > 0 ? Axis::kDp : s.pp > 0 ? Axis::kPp : s.cp > 0 ? Axis::kCp : Axis::kTp;
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
