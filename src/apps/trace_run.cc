#include "apps/trace_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/json_text.h"
#include "apps/layout_options.h"
#include "apps/output.h"
#include "engine/rank_group.h"
#include "kernels/ops.h"
#include "kv/block_pool.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;

constexpr size_t kFileBytesMax = 1 << 20;

InstanceSpec TracedSpec(const PlannedModel& planned) {
  return {.store = planned.store,
          .config = planned.config,
          .options = planned.options,
          .layout = planned.layout,
          .micro_batches_max = 1,
          .tracing = InstanceSpec::Tracing::kOn};
}

trace::Map MapOf(const Layout& layout) {
  trace::Map map{.layout = layout.ToString(), .layers = layout.shape().layers()};
  for (int rank = 0; rank < layout.world(); ++rank) map.node_of.push_back(layout.cluster().NodeOf(rank));
  for (int axis = 0; axis < kAxisCount; ++axis) map.names.axes.emplace_back(NameOf(static_cast<Axis>(axis)));
  for (int op = 0; op <= static_cast<int>(CommOp::kBarrier); ++op) map.names.ops.emplace_back(NameOf(static_cast<CommOp>(op)));
  for (int link = 0; link < kLinkClassCount; ++link) map.names.links.emplace_back(NameOf(static_cast<LinkClass>(link)));
  return map;
}

// Routes that force the token's experts and leave everything else to the gate.
StepRoutes ForcedRoutes(const Layout& layout, const TraceWork& work) {
  const ModelShape& m = layout.shape();
  StepRoutes routes;
  routes.replicas.resize(static_cast<size_t>(layout.dp()));
  for (int layer = 0; layer < m.layers(); ++layer) {
    if (!m.sparse[static_cast<size_t>(layer)]) continue;
    for (auto& layers : routes.replicas) layers.emplace_back();
    std::vector<int32_t>& rows = routes.replicas[static_cast<size_t>(work.replica)].back();
    rows.assign(work.tokens.size() * static_cast<size_t>(m.top_k), kChosenByGate);
    const auto given = work.experts.find(layer);
    if (given != work.experts.end()) std::copy(given->second.begin(), given->second.end(), rows.begin() + work.position * m.top_k);
  }
  return routes;
}

std::map<int, std::vector<int32_t>> ExpertsOfToken(const Layout& layout, const TraceWork& work, const StepRoutes& routes) {
  const ModelShape& m = layout.shape();
  std::map<int, std::vector<int32_t>> experts;
  size_t sparse = 0;
  for (int layer = 0; layer < m.layers(); ++layer) {
    if (!m.sparse[static_cast<size_t>(layer)]) continue;
    const auto first = routes.replicas[static_cast<size_t>(work.replica)][sparse++].begin() + work.position * m.top_k;
    experts[layer].assign(first, first + m.top_k);
  }
  return experts;
}

// The sequence on its replica, step by step.
class Steps {
 public:
  Steps(RankGroup& group, const TraceWork& work, int64_t blocks)
      : group_(group), work_(work), placement_(group.kv_placement()), blocks_(blocks),
        pool_(static_cast<int32_t>(placement_.UnitsOfPool(blocks)), placement_.pools()) {}

  // Rows [first, first + tokens.size()); the most likely token after them.
  Result<TokenId> Run(int64_t first, std::span<const TokenId> tokens) {
    const auto rows = static_cast<int64_t>(tokens.size());
    const std::vector<int64_t> ends = {0, rows};
    pool_.TakeFor(placement_, {.first_position = first, .rows = rows, .units = static_cast<int64_t>(units_.size())}, ends, &units_);
    std::vector<StepBatch> batches(static_cast<size_t>(group_.replicas()));
    StepBatch& batch = batches[static_cast<size_t>(work_.replica)];
    batch.tokens.assign(tokens.begin(), tokens.end());
    batch.sequences.push_back({.first_position = first,
                               .rows = rows,
                               .logit_rows = 1,
                               .blocks = BlockTable(placement_, units_, first + rows, blocks_)});
    SF_ASSIGN_OR_RETURN(const std::span<const float> logits, group_.Forward(batches));
    return ArgMax(logits);
  }

 private:
  RankGroup& group_;
  const TraceWork& work_;
  const KvPlacement placement_;
  const int64_t blocks_;
  BlockPool pool_;
  std::vector<int32_t> units_;
};

// The ledger counts where messages leave, the recorder writes down what is in them: they must agree.
Status CheckComplete(const TracedRun& traced) {
  if (const std::string unsaid = traced.run.FirstUnsaid(traced.map.names); !unsaid.empty())
    return Internal("a message was sent of which nobody said what it carries: " + unsaid);
  std::map<trace::TotalKey, trace::Total> totals = traced.run.Totals();
  for (const auto& [key, entry] : traced.ledger) {
    const trace::Total recorded =
        totals[{static_cast<uint8_t>(key.axis), static_cast<uint8_t>(key.op), static_cast<uint8_t>(key.link)}];
    if (recorded.bytes == entry.bytes) continue;
    return Internal(fmt::format("{} {} over {}: {} bytes were counted and {} recorded", NameOf(key.axis), NameOf(key.op),
                                NameOf(key.link), entry.bytes, recorded.bytes));
  }
  return OkStatus();
}

}  // namespace

Result<std::map<int, std::vector<int32_t>>> ReadForcedExperts(const std::string& path, const ModelShape& shape) {
  if (shape.experts == 0) return InvalidArgument("--experts: the model has no experts");
  SF_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kFileBytesMax));
  const ordered_json json = ParseJson(text, 3);
  if (!json.is_object()) {
    return InvalidArgument(path + ": expected one JSON object, the experts of a token by layer from 1: {\"1\": [5, 27], …}");
  }
  std::map<int, std::vector<int32_t>> experts;
  for (const auto& [name, given] : json.items()) {
    const bool number = !name.empty() && name.size() < 6 && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    const int layer = number ? std::stoi(name) - 1 : -1;
    if (layer < 0 || layer >= shape.layers() || !shape.sparse[static_cast<size_t>(layer)]) {
      return InvalidArgument(fmt::format("{}: '{}' is no layer with experts; the model has layers 1 to {}", path, name, shape.layers()));
    }
    if (experts.contains(layer)) return InvalidArgument(fmt::format("{}: layer {} comes twice", path, layer + 1));
    if (!given.is_array() || given.size() != static_cast<size_t>(shape.top_k)) {
      return InvalidArgument(fmt::format("{}: layer {}: expected a list of {} experts", path, name, shape.top_k));
    }
    for (const ordered_json& expert : given) {
      if (!expert.is_number_integer() || expert < 0 || expert >= shape.experts) {
        return InvalidArgument(fmt::format("{}: layer {}: experts are numbers from 0 to {}", path, name, shape.experts - 1));
      }
      std::vector<int32_t>& of = experts[layer];
      if (std::find(of.begin(), of.end(), expert.get<int32_t>()) != of.end())
        return InvalidArgument(fmt::format("{}: layer {}: expert {} comes twice", path, name, expert.get<int32_t>()));
      of.push_back(expert.get<int32_t>());
    }
  }
  return experts;
}

Result<TracedRun> RunTraced(const PlannedModel& planned, const Options& options, const Launch& launch, const TraceWork& work) {
  const RankGroupOptions group_options = GroupOptionsFrom(options);
  Result<std::unique_ptr<RankGroup>> started = launch.mpi != nullptr
                                                   ? RankGroup::StartLeader(TracedSpec(planned), *launch.mpi, group_options)
                                                   : RankGroup::StartThreads(TracedSpec(planned), group_options);
  SF_RETURN_IF_ERROR(started.status());
  RankGroup& group = **started;
  const auto prompt = static_cast<int64_t>(work.tokens.size());
  const int64_t blocks = group.kv_placement().BlocksOfOwner(prompt + work.decode_steps, 1);
  SF_RETURN_IF_ERROR(group.AllocateKv(static_cast<int32_t>(blocks)));
  TracedRun traced{.map = MapOf(planned.layout)};
  const bool experts = planned.config.moe.experts > 0;
  group.RecordRoutes(experts);
  if (!work.experts.empty()) group.ForceRoutes(ForcedRoutes(planned.layout, work));
  Steps steps(group, work, blocks);
  SF_ASSIGN_OR_RETURN(TokenId next, steps.Run(0, work.tokens));
  traced.answers.push_back(next);
  if (experts) traced.experts = ExpertsOfToken(planned.layout, work, group.last_routes());
  group.RecordRoutes(false);
  for (int step = 0; step < work.decode_steps; ++step) {
    SF_ASSIGN_OR_RETURN(next, steps.Run(prompt + step, {&next, 1}));
    traced.answers.push_back(next);
  }
  SF_ASSIGN_OR_RETURN(std::vector<trace::RankTrace> ranks, group.TakeTrace());
  traced.run = trace::Run(std::move(ranks));
  SF_ASSIGN_OR_RETURN(const GroupStats stats, group.Stats());
  for (const auto& [key, entry] : stats.counted) {
    if (key.op != CommOp::kRoutes) traced.ledger[key] = entry;
  }
  SF_RETURN_IF_ERROR(group.Stop());
  SF_RETURN_IF_ERROR(CheckComplete(traced));
  return traced;
}

Status FollowTraced(const PlannedModel& planned, const Launch& launch) { return RunRank(TracedSpec(planned), *launch.mpi); }

}  // namespace sixfold::apps
