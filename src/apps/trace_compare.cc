#include "apps/trace_compare.h"

#include <algorithm>

#include "mesh/collectives.h"

namespace sixfold::apps {
namespace {

// The ranks of the replica's first stage with experts, and its rows among a dispatch group's members.
std::vector<int64_t> RowsOfMembers(const Layout& layout, const TracedRun& traced, const std::vector<int>& group, int replica) {
  std::vector<int64_t> rows;
  for (const int rank : group) {
    const RankShard shard = layout.Shard(rank);
    const auto list_rows = static_cast<int64_t>(traced.run.ranks()[static_cast<size_t>(rank)].rows.front().rows.size());
    rows.push_back(shard.dp == replica ? layout.DispatchRows(list_rows, shard.tp).size() : 0);
  }
  return rows;
}

int FirstSparse(const Layout& layout) {
  const auto& sparse = layout.shape().sparse;
  return static_cast<int>(std::find(sparse.begin(), sparse.end(), true) - sparse.begin());
}

// Elements between nodes that one layer's dispatch and combine are expected to send.
double ExpectedElements(const Layout& layout, const TracedRun& traced, int replica) {
  const Cluster& cluster = layout.cluster();
  const int layer = FirstSparse(layout);
  if (!layout.dispatches() || cluster.nodes() == 1 || cluster.inside.link == cluster.between.link) return 0;
  int home = 0;
  while (layout.Shard(home).dp != replica || layer < layout.Shard(home).layers.begin || layer >= layout.Shard(home).layers.end) ++home;
  const std::vector<int> group = layout.DispatchGroup(home);
  const RowBytes bytes = ExpertRowBytes(layout.shape());
  const Ledger ledger = layout.PlannerFor(layer, group).ExpectedTraffic(RowsOfMembers(layout, traced, group, replica), bytes);
  double elements = 0;
  for (const auto& [key, entry] : ledger) {
    if (key.link != cluster.between.link) continue;
    const int64_t row = key.op == CommOp::kDispatch ? bytes.dispatch : bytes.combine;
    elements += static_cast<double>(entry.bytes) / static_cast<double>(row) * static_cast<double>(layout.shape().hidden);
  }
  return elements;
}

}  // namespace

MeshFigures FiguresOf(const Layout& layout, const TracedRun& traced, const trace::Journey& journey, int replica) {
  const ModelShape& m = layout.shape();
  MeshFigures out{.mesh = layout.mesh().ToString(),
                  .layout = layout.ToString(),
                  .ranks = static_cast<int64_t>(journey.ranks.size()),
                  .crossings = journey.crossings,
                  .operations = static_cast<int64_t>(journey.operations.size())};
  const RowBytes bytes = ExpertRowBytes(m);
  const int senders = layout.world() / layout.dp() / layout.pp();  // ranks of a replica's stage
  int64_t rows = 0;  // of the prompt
  double experts = 0, stages = 0;
  for (const trace::RankTrace& rank : traced.run.ranks()) {
    const RankShard shard = layout.Shard(rank.rank);
    const trace::RowList& list = rank.rows.front();
    if (shard.dp == replica && shard.pp == 0) rows += layout.DispatchRows(static_cast<int64_t>(list.rows.size()), shard.tp).size();
    for (const trace::Message& message : rank.messages) {
      if (message.at.step != 0 || traced.map.node_of[message.from] == traced.map.node_of[message.to]) continue;
      const auto sent = static_cast<double>(message.bytes) * static_cast<double>(m.hidden);
      if (message.at.phase == trace::Phase::kDispatch) experts += sent / static_cast<double>(bytes.dispatch);
      if (message.at.phase == trace::Phase::kCombine) experts += sent / static_cast<double>(bytes.combine);
      if (message.at.phase == trace::Phase::kStageSend) stages += static_cast<double>(message.bytes) / sizeof(float);
    }
  }
  const double unit = static_cast<double>(rows * m.hidden) * senders;
  const auto layers = static_cast<double>(std::count(m.sparse.begin(), m.sparse.end(), true));
  if (layers > 0) out.experts_sent = experts / layers / unit;
  out.experts_expected = ExpectedElements(layout, traced, replica) / unit;
  if (layout.pp() > 1) out.stage_sent = stages / (layout.pp() - 1) / unit;
  return out;
}

}  // namespace sixfold::apps
