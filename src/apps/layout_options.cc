#include "apps/layout_options.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/json_text.h"
#include "apps/output.h"
#include "mesh/cluster_file.h"

namespace sixfold::apps {

using nlohmann::ordered_json;

Result<Mesh> MeshFrom(const Options& options) {
  static constexpr std::pair<std::string_view, Axis> kSizes[] = {
      {"tensor-parallel-size", Axis::kTp},
      {"context-parallel-size", Axis::kCp},
      {"data-parallel-size", Axis::kDp},
      {"pipeline-parallel-size", Axis::kPp}};
  if (!options.IsGiven("mesh")) {
    std::vector<AxisSize> sizes;
    for (const auto& [name, axis] : kSizes) {
      sizes.push_back({axis, static_cast<int>(options.Integer(name))});
    }
    return Mesh::Make(sizes);
  }
  for (const auto& [name, axis] : kSizes) {
    if (options.IsGiven(name)) {
      return InvalidArgument(fmt::format("{} and {} exclude each other: write the size into the mesh",
                                         options.Get("mesh").origin.name,
                                         options.Get(name).origin.name));
    }
  }
  Result<Mesh> mesh = Mesh::Parse(options.Text("mesh"));
  if (!mesh.ok()) return mesh.status().WithContext(options.Get("mesh").origin.name);
  return mesh;
}

namespace {

// What the layout library refuses by itself is not looked at here.
Result<ContextOptions> ContextFrom(const Options& options, const Mesh& mesh) {
  ContextOptions out{.form = *CpFormFromName(options.Text("cp-comm-type")),
                     .interleave = options.MaybeInteger("cp-kv-cache-interleave-size").value_or(0)};
  const std::vector<int64_t> sizes = options.Integers("hierarchical-context-parallel-sizes");
  if (sizes.empty()) return out;
  const std::string& flag = options.Get("hierarchical-context-parallel-sizes").origin.name;
  const int cp = mesh.size(Axis::kCp);
  if (sizes.size() != 2) {
    return InvalidArgument(fmt::format("{}: expected two sizes U,R such as 2,{}, got {}", flag, std::max(1, cp / 2), fmt::join(sizes, ",")));
  }
  if (sizes[0] * sizes[1] != cp) {
    std::vector<std::string> fitting;
    for (int u = 1; u <= cp; ++u) {
      if (cp % u == 0) fitting.push_back(fmt::format("{},{}", u, cp / u));
    }
    return InvalidArgument(fmt::format("{}: {} times {} is not the cp size, which is {}: give {}", flag, sizes[0], sizes[1], cp,
                                       fmt::join(fitting, " or ")));
  }
  if (out.form != CpForm::kUlyssesRing)
    return InvalidArgument(fmt::format("{} goes with --cp-comm-type a2a+p2p alone, not with {}", flag, NameOf(out.form)));
  out.ulysses = static_cast<int>(sizes[0]);
  return out;
}

constexpr size_t kPlacementBytesMax = 16 << 20;

// {"1": [place of expert 0, place of expert 1, …], …}, layers from 1. What the model makes of it, Layout::Make checks.
Result<std::map<int, ExpertPlacement>> ReadPlacements(const std::string& path) {
  SF_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kPlacementBytesMax));
  const ordered_json json = ParseJson(text, 2);
  if (!json.is_object()) {
    return InvalidArgument(path + R"(: expected one JSON object such as {"1": [0, 0, 1, 1]}: layers, and the place of each expert)");
  }
  std::map<int, ExpertPlacement> placements;
  for (const auto& [key, value] : json.items()) {
    int layer = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), layer);
    if (error != std::errc() || end != key.data() + key.size() || layer < 1) {
      return InvalidArgument(fmt::format("{}: '{}' is no layer: they count from 1", path, key.substr(0, 40)));
    }
    if (!value.is_array()) return InvalidArgument(fmt::format("{}: layer {} needs a list of places", path, layer));
    if (placements.contains(layer - 1)) return InvalidArgument(fmt::format("{}: layer {} comes twice", path, layer));
    ExpertPlacement& placement = placements[layer - 1];
    for (const ordered_json& place : value) {
      if (!place.is_number_integer() || place < 0 || place > 65535)
        return InvalidArgument(fmt::format("{}: layer {}: a place is a number from 0", path, layer));
      placement.push_back(place.get<int32_t>());
    }
  }
  return placements;
}

}  // namespace

Result<sixfold::LayoutOptions> LayoutOptionsFrom(const Options& options) {
  sixfold::LayoutOptions out;
  SF_ASSIGN_OR_RETURN(out.mesh, MeshFrom(options));
  SF_ASSIGN_OR_RETURN(out.context, ContextFrom(options, out.mesh));
  out.sequence_parallel = options.Flag("sequence-parallel");
  out.experts.expert_parallel = options.Flag("enable-expert-parallel")
                                    ? ExpertMeshRequest::ExpertParallel::kOn
                                    : ExpertMeshRequest::ExpertParallel::kOff;
  out.experts.ep = options.MaybeInteger("expert-parallel-size");
  out.experts.etp = options.MaybeInteger("expert-tensor-parallel-size");
  if (const std::string& backend = options.Text("all2all-backend"); backend != "auto")
    out.all2all = backend == "flat" ? All2AllBackend::kFlat : All2AllBackend::kHierarchical;
  if (options.IsGiven("expert-placement")) {
    SF_ASSIGN_OR_RETURN(out.placements, ReadPlacements(options.Text("expert-placement")));
  }
  if (options.IsGiven("cluster")) {
    if (options.IsGiven("nodes"))
      return InvalidArgument("--cluster and --nodes exclude each other: the file has the nodes");
    SF_ASSIGN_OR_RETURN(out.cluster, ReadClusterFile(options.Text("cluster")));
    return out;
  }
  SF_ASSIGN_OR_RETURN(
      out.cluster,
      Cluster::EqualNodes(out.mesh.world(), static_cast<int>(options.Integer("nodes"))));
  return out;
}

RankGroupOptions GroupOptionsFrom(const Options& options) {
  RankGroupOptions out;
  const double seconds = options.MaybeReal("comm-timeout").value_or(30);
  out.timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  if (options.command() == CommandId::kVerify || options.IsGiven("stats"))
    out.prediction = RankGroupOptions::Prediction::kOn;
  if (options.Flag("emulate-links")) out.links = RankGroupOptions::Links::kEmulated;
  return out;
}

namespace {

ordered_json CollectiveRows(const Ledger& counted, const Ledger& predicted) {
  std::set<LedgerKey> keys;
  for (const auto& [key, entry] : counted) keys.insert(key);
  for (const auto& [key, entry] : predicted) keys.insert(key);
  const auto at = [](const Ledger& ledger, const LedgerKey& key) {
    const auto found = ledger.find(key);
    return found == ledger.end() ? LedgerEntry{} : found->second;
  };
  ordered_json rows = ordered_json::array();
  for (const LedgerKey& key : keys) {
    rows.push_back({{"axis", NameOf(key.axis)},
                    {"op", NameOf(key.op)},
                    {"link", NameOf(key.link)},
                    {"count", at(counted, key).count},
                    {"counted_bytes", at(counted, key).bytes},
                    {"predicted_count", at(predicted, key).count},
                    {"predicted_bytes", at(predicted, key).bytes}});
  }
  return rows;
}

}  // namespace

std::string CollectivesJson(const Ledger& counted, const Ledger& predicted) {
  return CollectiveRows(counted, predicted).dump();
}

namespace {

// Layers count from 0, over those that have experts.
ordered_json ExpertsJson(const Layout& layout, const ExpertLoad& load) {
  ordered_json layers = ordered_json::array();
  size_t sparse = 0;
  for (int layer = 0; layer < layout.shape().layers(); ++layer) {
    if (!layout.shape().sparse[static_cast<size_t>(layer)]) continue;
    const auto first = load.tokens.begin() + static_cast<int64_t>(sparse) * load.experts;
    layers.push_back({{"layer", layer},
                      {"imbalance", load.imbalance[sparse]},
                      {"place_imbalance", load.place_imbalance[sparse]},
                      {"assignments", std::vector<int64_t>(first, first + load.experts)}});
    ++sparse;
  }
  return {{"mesh", layout.expert_mesh().ToString()},
          {"all2all_backend", layout.dispatches() ? ordered_json(NameOf(layout.all2all())) : ordered_json(nullptr)},
          {"assignments", load.assignments()},
          {"imbalance_mean", MeanOf(load.imbalance)},
          {"imbalance_max", MaxOf(load.imbalance)},
          {"place_imbalance_mean", MeanOf(load.place_imbalance)},
          {"dispatch", {{"bytes", load.dispatch_bytes}, {"seconds", load.dispatch_seconds}}},
          {"combine", {{"bytes", load.combine_bytes}, {"seconds", load.combine_seconds}}},
          {"layers", std::move(layers)}};
}

}  // namespace

Status WriteStats(const Options& options, const Layout& layout, const ExpertLoad& alone, RankGroup* group) {
  if (!options.IsGiven("stats")) return OkStatus();
  GroupStats stats{.world = 1};
  if (group != nullptr) {
    SF_ASSIGN_OR_RETURN(stats, group->Stats());
  }
  ordered_json ranks = ordered_json::array();
  constexpr double kSecond = 1e9;
  ControlTraffic control;
  for (const RankReport& r : stats.ranks) {
    const RankShard shard = layout.Shard(r.rank);
    ranks.push_back({{"rank", r.rank},
                     {"node", layout.cluster().NodeOf(r.rank)},
                     {"tp", shard.tp},
                     {"cp", shard.cp},
                     {"dp", shard.dp},
                     {"pp", shard.pp},
                     {"ep", shard.ep},
                     {"etp", shard.etp},
                     {"edp", shard.edp},
                     {"step_seconds", static_cast<double>(r.step_ns) / kSecond},
                     {"comm_seconds", static_cast<double>(r.comm_ns) / kSecond},
                     {"idle_seconds", static_cast<double>(r.idle_ns) / kSecond},
                     {"dispatch_seconds", static_cast<double>(r.dispatch_ns) / kSecond},
                     {"combine_seconds", static_cast<double>(r.combine_ns) / kSecond},
                     {"kv_bytes", r.kv_bytes_max},
                     {"kv_transit_bytes", r.kv_transit_bytes_max},
                     {"kv_layers", shard.layers.size()}});
    control.messages += r.control.messages;
    control.bytes += r.control.bytes;
  }
  if (group == nullptr) {
    ranks.push_back({{"rank", 0}, {"node", 0}, {"tp", 0}, {"cp", 0}, {"dp", 0}, {"pp", 0}, {"ep", 0}, {"etp", 0}, {"edp", 0}});
  }
  ordered_json json = {
      {"world", stats.world},
      {"layout", layout.ToString()},
      {"cp_comm_type", layout.cp() > 1 ? ordered_json(NameOf(layout.context().form)) : ordered_json(nullptr)},
      {"steps", stats.steps},
      {"ranks", std::move(ranks)},
      {"collectives", CollectiveRows(stats.counted, stats.predicted)},
      {"control", {{"messages", control.messages}, {"bytes", control.bytes}}}};
  const ExpertLoad load = group != nullptr ? stats.experts : alone;
  if (load.experts > 0) json["experts"] = ExpertsJson(layout, load);
  return WriteTextFile(options.Text("stats"), json.dump(1) + "\n");
}

}  // namespace sixfold::apps
