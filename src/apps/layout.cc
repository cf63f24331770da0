// sixfold layout: which rank holds what, who talks to whom over which link, and the bytes of a step.
#include <fmt/format.h>

#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/commands.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/output.h"
#include "base/plural.h"
#include "kv/placement.h"
#include "mesh/collectives.h"
#include "model/micro_batch.h"
#include "model/stage.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;

ordered_json Range(Share share) { return ordered_json::array({share.begin, share.end}); }

// Leaves of the cut sums as the ranges of k that the rank adds up by itself.
ordered_json NodesJson(const KCut& cut, int tp) {
  ordered_json nodes = ordered_json::array();
  if (cut.node_k.empty()) return nodes;
  for (const Share& node : cut.node_k[static_cast<size_t>(tp)]) nodes.push_back(Range(node));
  return nodes;
}

bool HasSparse(const ModelShape& shape) {
  return std::find(shape.sparse.begin(), shape.sparse.end(), true) != shape.sparse.end();
}

ordered_json ShardJson(const Layout& layout, int rank) {
  const RankShard s = layout.Shard(rank);
  ordered_json json = {{"rank", rank},
                       {"node", layout.cluster().NodeOf(rank)},
                       {"tp", s.tp},
                       {"cp", s.cp},
                       {"dp", s.dp},
                       {"pp", s.pp},
                       {"layers", Range(s.layers)},
                       {"heads", Range(s.heads)},
                       {"kv_heads", Range(s.kv_heads)},
                       {"output_nodes", NodesJson(layout.output_cut(), s.tp)},
                       {"intermediate", Range(s.intermediate)},
                       {"down_nodes", NodesJson(layout.down_cut(), s.tp)},
                       {"vocab", Range(s.vocab)},
                       {"embedding", s.first_stage},
                       {"head", s.last_stage}};
  if (!HasSparse(layout.shape())) return json;
  json["ep"] = s.ep;
  json["etp"] = s.etp;
  json["edp"] = s.edp;
  json["expert_intermediate"] = Range(s.expert_intermediate);
  if (layout.shape().shared_intermediate > 0) {
    json["shared_intermediate"] = Range(s.shared_intermediate);
    json["shared_down_nodes"] = NodesJson(layout.shared_down_cut(), s.tp);
  }
  // Layers count from 0 here as in "layers"; those with the placement of most stand under "experts".
  ordered_json by_layer = ordered_json::object();
  for (int64_t l = s.layers.begin; l < s.layers.end; ++l) {
    if (!layout.shape().sparse[static_cast<size_t>(l)]) continue;
    const std::vector<int> experts = layout.ExpertsAt(static_cast<int>(l), s.ep);
    if (layout.options().placements.contains(static_cast<int>(l))) {
      by_layer[std::to_string(l)] = experts;
    } else {
      json["experts"] = experts;
    }
  }
  if (!by_layer.empty()) json["experts_by_layer"] = std::move(by_layer);
  return json;
}

ordered_json GroupJson(const Layout& layout, const std::vector<int>& group) {
  std::set<std::string> links;
  for (size_t i = 0; i < group.size(); ++i) {
    for (size_t j = i + 1; j < group.size(); ++j)
      links.insert(std::string(NameOf(layout.cluster().LinkBetween(group[i], group[j]).link)));
  }
  return {{"ranks", group}, {"links", links}};
}

ordered_json GroupsJson(const Layout& layout) {
  ordered_json json;
  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp}) {
    ordered_json& groups = json[std::string(NameOf(axis))];
    groups = ordered_json::array();
    if (layout.mesh().size(axis) == 1) continue;
    for (const std::vector<int>& group : layout.mesh().Groups(std::span(&axis, 1))) {
      groups.push_back(GroupJson(layout, group));
    }
  }
  if (!HasSparse(layout.shape())) return json;
  // "dispatch": the ranks that exchange rows (ep and etp together).
  static constexpr Axis kDispatch[] = {Axis::kEtp, Axis::kEp}, kEp[] = {Axis::kEp}, kEtp[] = {Axis::kEtp}, kEdp[] = {Axis::kEdp};
  for (const auto& [name, axes] : {std::pair<std::string, std::span<const Axis>>{"ep", kEp},
                                   {"etp", kEtp},
                                   {"edp", kEdp},
                                   {"dispatch", kDispatch}}) {
    ordered_json& groups = json[name];
    groups = ordered_json::array();
    for (const std::vector<int>& group : layout.expert_mesh().Groups(axes)) {
      if (group.size() > 1 && (name != "dispatch" || layout.dispatches())) groups.push_back(GroupJson(layout, group));
    }
  }
  return json;
}

ordered_json ContextJson(const Layout& layout) {
  if (layout.cp() == 1) return nullptr;
  const ContextRule& rule = layout.context();
  return {{"cp_comm_type", NameOf(rule.form)},
          {"attention_chunk", rule.chunk},
          {"interleave", rule.interleave},
          {"hierarchical_sizes", {rule.ulysses, rule.ring()}}};
}

ordered_json ClusterJson(const Cluster& cluster) {
  const auto link = [](const Link& l) {
    return ordered_json{{"link", NameOf(l.link)},
                        {"bandwidth_gb_s", l.bandwidth_gb_s},
                        {"latency_us", l.latency_us}};
  };
  return {{"ranks_per_node", cluster.ranks_per_node},
          {"inside", link(cluster.inside)},
          {"between", link(cluster.between)}};
}

// The chunk owners of a prompt of `rows` tokens that comes in one step.
std::vector<int32_t> OwnersOf(const Layout& layout, int64_t rows, int micro_batches) {
  const KvPlacement placement = PlacementOf(layout);
  std::vector<int64_t> free(static_cast<size_t>(placement.pools()), std::numeric_limits<int32_t>::max());
  const std::vector<int> dealt = DealUnits(placement, {.rows = rows}, MicroBatchEnds(rows, micro_batches), free);
  return {dealt.begin(), dealt.end()};
}

// A step in which every replica has a prompt of `rows` tokens, the last of which wants logits.
StepShape Uniform(const Layout& layout, int64_t rows) {
  StepShape step;
  const int count = MicroBatchCount(rows, layout.pp());
  std::vector<int32_t> owners;
  if (layout.cp() > 1) owners = OwnersOf(layout, rows, count);
  for (int dp = 0; dp < layout.dp(); ++dp) {
    std::vector<MicroBatchShape>& batches = step.replicas.emplace_back();
    for (int m = 0; m < count; ++m) {
      const Share share = ShareOf(rows, count, m);
      MicroBatchShape batch{.rows = share.size()};
      if (layout.cp() > 1 && batch.rows > 0)
        batch.sequences = {{.first_position = share.begin, .rows = batch.rows, .owners = owners}};
      if (m + 1 == count && batch.rows > 0) batch.wanted = {static_cast<int32_t>(batch.rows - 1)};
      batches.push_back(std::move(batch));
    }
  }
  return step;
}

ordered_json BytesJson(const Ledger& ledger) {
  ordered_json rows = ordered_json::array();
  for (const auto& [key, entry] : ledger) {
    rows.push_back({{"axis", NameOf(key.axis)},
                    {"op", NameOf(key.op)},
                    {"link", NameOf(key.link)},
                    {"count", entry.count},
                    {"bytes", entry.bytes}});
  }
  return rows;
}

std::string RangeText(Share share) {
  return share.size() == 0 ? "none" : fmt::format("{}-{}", share.begin, share.end - 1);
}

// "4-7", "4-7 columns 0-63", or how many where a file placed them.
std::string ExpertsText(const Layout& layout, const RankShard& s) {
  std::string text = layout.options().placements.empty() ? RangeText(layout.expert_mesh().ExpertsAt(s.ep)) : "as placed";
  if (s.expert_intermediate.size() < layout.shape().expert_intermediate)
    text += ", columns " + RangeText(s.expert_intermediate);
  return text;
}

std::string TextOf(const PlannedModel& planned, int64_t rows, const Ledger& ledger) {
  const Layout& layout = planned.layout;
  std::string text = fmt::format("{}: {}, {}\n\n", planned.name, Plural(layout.world(), "rank"), layout.ToString());
  const bool experts = HasSparse(layout.shape());
  constexpr const char* kRow = "{:>5} {:>5} {:>4} {:>4} {:>4} {:>4}  {:<13} {:<9} {:<9} {:<14} {:<16}{}\n";
  text += fmt::format(kRow, "rank", "node", "tp", "cp", "dp", "pp", "layers from 0", "heads", "kv heads",
                      "ffn columns", "vocabulary", experts ? "  experts" : "");
  for (int rank = 0; rank < layout.world(); ++rank) {
    const RankShard s = layout.Shard(rank);
    text += fmt::format(kRow, rank, layout.cluster().NodeOf(rank), s.tp, s.cp, s.dp, s.pp, RangeText(s.layers), RangeText(s.heads),
                        RangeText(s.kv_heads), RangeText(s.intermediate), RangeText(s.vocab),
                        experts ? "  " + ExpertsText(layout, s) : "");
  }
  text += fmt::format("\nA step of {} a replica sends{}:\n", Plural(rows, "row"),
                      layout.dispatches() ? " (rows to experts: expected, if every expert is as likely)" : "");
  if (ledger.empty()) text += "  nothing\n";
  for (const auto& [key, entry] : ledger) {
    text += fmt::format("  {:<4} {:<15} {:<11} {:>14} {:>16} bytes  ({})\n", NameOf(key.axis), NameOf(key.op),
                        NameOf(key.link), Plural(entry.count, "time"), CountText(entry.bytes),
                        BytesText(static_cast<double>(entry.bytes)));
  }
  return text;
}

}  // namespace

Status RunLayout(const Options& options) {
  SF_ASSIGN_OR_RETURN(const PlannedModel planned, PlanModel(options, {}, nullptr));
  const std::vector<int64_t> given = options.Integers("tokens");
  if (given.size() > 1) return InvalidArgument("--tokens is one number here: rows of a step");
  const int64_t rows = given.empty() ? 1 : given.front();
  const Layout& layout = planned.layout;
  const int64_t rows_max = layout.cp() > 1 ? int64_t{1} << 24 : 1'000'000'000;  // each row is dealt by itself
  if (rows > rows_max) return InvalidArgument(fmt::format("--tokens is {}; it may be up to {}", rows, rows_max));
  const Ledger ledger = PlanCollectives(layout, Uniform(layout, rows), nullptr);
  if (!options.Flag("json")) return Print(TextOf(planned, rows, ledger));
  ordered_json ranks = ordered_json::array();
  for (int rank = 0; rank < layout.world(); ++rank) ranks.push_back(ShardJson(layout, rank));
  int64_t total = 0;
  for (const auto& [key, entry] : ledger) total += entry.bytes;
  const ordered_json json = {{"model", planned.name},
                             {"mesh", layout.mesh().ToString()},
                             {"sequence_parallel", layout.sequence_parallel()},
                             {"context", ContextJson(layout)},
                             {"expert_mesh", HasSparse(layout.shape()) ? ordered_json(layout.expert_mesh().ToString())
                                                                       : ordered_json(nullptr)},
                             {"all2all_backend", layout.dispatches() ? ordered_json(NameOf(layout.all2all()))
                                                                     : ordered_json(nullptr)},
                             {"world", layout.world()},
                             {"cluster", ClusterJson(layout.cluster())},
                             {"ranks", std::move(ranks)},
                             {"groups", GroupsJson(layout)},
                             {"tokens", rows},
                             {"collectives", BytesJson(ledger)},
                             {"total_bytes", total}};
  return Print(json.dump(1) + "\n");
}

}  // namespace sixfold::apps
