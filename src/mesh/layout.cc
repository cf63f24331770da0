#include "mesh/layout.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/fnv.h"
#include "base/plural.h"
#include "kernels/ops.h"

namespace sixfold {

namespace {

// The tree over units for kReproducible; over the members that have a share for kFast, each with one leaf.
TreeCut TreeOver(const Leaves& units, int tp, Numerics numerics) {
  if (numerics == Numerics::kReproducible) return CutTree(units.count(), tp);
  TreeCut cut;
  for (int m = 0; m < tp; ++m) {
    const bool empty = ShareOf(units.count(), tp, m).size() == 0;
    cut.shares.push_back({cut.leaves, cut.leaves + (empty ? 0 : 1)});
    cut.nodes.emplace_back();
    if (empty) continue;
    cut.nodes.back().push_back({cut.leaves, cut.leaves + 1});
    ++cut.leaves;
  }
  return cut;
}

KCut CutOf(const Leaves& units, int tp, Numerics numerics) {
  KCut cut;
  if (units.begin.size() < 2) return cut;  // the model has no such reduction
  cut.tree = TreeOver(units, tp, numerics);
  for (int m = 0; m < tp; ++m) {
    const Share own = ShareOf(units.count(), tp, m);
    cut.k.push_back({units.begin[own.begin], units.begin[own.end]});
    cut.node_k.emplace_back();
    cut.node_leaves.emplace_back();
    for (const TreeNode& node : cut.tree.nodes[m]) {
      if (numerics == Numerics::kFast) {
        cut.node_k.back().push_back(cut.k.back());
        cut.node_leaves.back().push_back(Leaves::Whole(cut.k.back().size()));
        continue;
      }
      const int64_t first = units.begin[node.begin];
      cut.node_k.back().push_back({first, units.begin[node.end]});
      Leaves leaves;
      for (int v = node.begin; v <= node.end; ++v) leaves.begin.push_back(units.begin[v] - first);
      cut.node_leaves.back().push_back(std::move(leaves));
    }
  }
  return cut;
}

std::string Count(int count, const char* what) { return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s"); }

int TpMax(const ModelShape& shape) { return shape.output_units.count(); }

// A mesh of the same order with other sizes; cp stays.
std::optional<Mesh> WithSizes(const Mesh& mesh, int tp, int dp, int pp) {
  std::vector<AxisSize> sizes(mesh.order().begin(), mesh.order().end());
  for (AxisSize& s : sizes) {
    s.size = s.axis == Axis::kTp ? tp : s.axis == Axis::kDp ? dp : s.axis == Axis::kPp ? pp : s.size;
  }
  Result<Mesh> made = Mesh::Make(sizes);
  return made.ok() ? std::optional<Mesh>(made.value()) : std::nullopt;
}

// Layouts that run: first those of as many ranks, then the same with the offending sizes cut down.
std::string Nearest(const ModelShape& shape, const Mesh& mesh, int nodes) {
  const int tp = mesh.size(Axis::kTp), pp = mesh.size(Axis::kPp), world = mesh.world() / mesh.size(Axis::kCp);
  const int tp_max = std::max(1, TpMax(shape)), pp_max = std::max(1, shape.layers());
  std::vector<std::string> found;
  const auto add = [&](int t, int d, int p) {
    const std::optional<Mesh> near = WithSizes(mesh, t, d, p);
    if (near && near->world() % nodes == 0 && std::find(found.begin(), found.end(), near->ToString()) == found.end()) found.push_back(near->ToString());
  };
  for (int t = std::min(tp, tp_max); t >= 1; --t) {
    if (world % t != 0) continue;
    for (int p = std::min(pp, pp_max); p >= 1; --p) {
      if (world / t % p != 0) continue;
      add(t, world / t / p, p);
      break;
    }
    break;
  }
  add(std::min(tp, tp_max), mesh.size(Axis::kDp), std::min(pp, pp_max));
  if (found.empty()) return fmt::format("take fewer than {} nodes", nodes);
  return fmt::format("the nearest that can: --mesh {}", fmt::join(found, ", or --mesh "));
}

}  // namespace

Status Layout::Check(const ModelShape& shape, const LayoutOptions& options) {
  const Mesh& mesh = options.mesh;
  const int tp = mesh.size(Axis::kTp), pp = mesh.size(Axis::kPp);
  const auto refuse = [&](const std::string& why) {
    return InvalidArgument(fmt::format("the layout {} cannot run: {}; {}", mesh.ToString(), why,
                                       Nearest(shape, mesh, options.cluster.nodes())));
  };
  if (tp > shape.heads) return refuse(fmt::format("tp is {} and the model has {}", tp, Count(shape.heads, "query head")));
  if (tp > TpMax(shape)) {
    // Below 16 heads a leaf is a head, or as many as a block of the weights' type asks for.
    const bool more_leaves = shape.numerics == Numerics::kReproducible && shape.heads >= 16;
    return refuse(fmt::format("tp is {} and the sum after attention has {}{}", tp,
                              TpMax(shape) == 1 ? "one part" : fmt::format("{} leaves", TpMax(shape)),
                              more_leaves ? " (more come with --reduction-leaves, or with --numerics fast)" : ""));
  }
  if (pp > shape.layers()) return refuse(fmt::format("pp is {} and the model has {}", pp, Count(shape.layers(), "layer")));
  if (options.cluster.ranks() != mesh.world()) {
    return InvalidArgument(fmt::format("the mesh {} has {} and the cluster has {} on {}: make them equal",
                                       mesh.ToString(), Plural(mesh.world(), "rank"), options.cluster.ranks(),
                                       Plural(options.cluster.nodes(), "node")));
  }
  return OkStatus();
}

Result<Layout> Layout::Make(const ModelShape& shape, const LayoutOptions& options) {
  SF_RETURN_IF_ERROR(Check(shape, options));
  Layout layout;
  layout.shape_ = shape;
  layout.options_ = options;
  layout.output_ = CutOf(shape.output_units, layout.tp(), shape.numerics);
  layout.down_ = CutOf(shape.down_units, layout.tp(), shape.numerics);
  layout.shared_down_ = CutOf(shape.shared_down_units, layout.tp(), shape.numerics);
  SF_RETURN_IF_ERROR(layout.SetExperts());
  SF_RETURN_IF_ERROR(layout.SetContext());
  return layout;
}

Status Layout::SetExperts() {
  SF_ASSIGN_OR_RETURN(expert_mesh_, ExpertMesh::Make(mesh(), options_.experts, shape_.experts));
  expert_down_ = CutOf(shape_.expert_down_units, expert_mesh_.etp(), shape_.numerics);
  SF_RETURN_IF_ERROR(CheckPlacements());
  if (shape_.experts == 0) return OkStatus();
  // Groups of etp are runs of a stage's ranks, as those of tp are when tp counts first among what a stage has.
  const auto counts = [](const AxisSize& a) { return a.axis != Axis::kPp && a.size > 1; };
  const auto first = std::find_if(mesh().order().begin(), mesh().order().end(), counts);
  const bool tp_first = tp() == 1 || first->axis == Axis::kTp;
  dispatches_ = expert_mesh_.ep() > 1 || expert_mesh_.etp() != tp() || !tp_first;
  // A dispatch group is a run of a stage's ranks.
  bool crosses = false;
  const auto group = static_cast<size_t>(expert_mesh_.ep() * expert_mesh_.etp());
  for (int stage = 0; stage < expert_mesh_.stages(); ++stage) {
    const std::span<const int> ranks = expert_mesh_.StageRanks(stage);
    for (size_t i = 0; i < ranks.size(); i += group) {
      crosses = crosses || cluster().NodeOf(ranks[i]) != cluster().NodeOf(ranks[i + group - 1]);
    }
  }
  all2all_ = options_.all2all.value_or(crosses ? All2AllBackend::kHierarchical : All2AllBackend::kFlat);
  return OkStatus();
}

Status Layout::CheckPlacements() const {
  for (const auto& [layer, placement] : options_.placements) {
    const std::string where = fmt::format("the placement of layer {}", layer + 1);
    if (layer < 0 || layer >= shape_.layers() || !shape_.sparse[layer]) {
      return InvalidArgument(fmt::format("{}: the model has no experts there", where));
    }
    if (static_cast<int>(placement.size()) != shape_.experts) {
      return InvalidArgument(
          fmt::format("{} names {} experts and the model has {}", where, placement.size(), shape_.experts));
    }
    for (const int32_t ep : placement) {
      if (ep < 0 || ep >= expert_mesh_.ep()) {
        return InvalidArgument(
            fmt::format("{} names place {} and ep is {}: places count from 0", where, ep, expert_mesh_.ep()));
      }
    }
  }
  return OkStatus();
}

ExpertPlacement Layout::PlacementOf(int layer) const {
  const auto given = options_.placements.find(layer);
  if (given != options_.placements.end()) return given->second;
  ExpertPlacement placement;
  for (int e = 0; e < shape_.experts; ++e) placement.push_back(expert_mesh_.EpOf(e));
  return placement;
}

std::vector<int> Layout::ExpertsAt(int layer, int ep) const {
  std::vector<int> experts;
  const ExpertPlacement placement = PlacementOf(layer);
  for (int e = 0; e < shape_.experts; ++e) {
    if (placement[e] == ep) experts.push_back(e);
  }
  return experts;
}

std::vector<int> Layout::DispatchGroup(int rank) const {
  static constexpr Axis kAxes[] = {Axis::kEtp, Axis::kEp};
  return expert_mesh_.Group(rank, kAxes);
}

DispatchPlanner Layout::PlannerFor(int layer, const std::vector<int>& dispatch_group) const {
  return DispatchPlanner(all2all_, combine_form(), cluster(),
                         {.ranks = dispatch_group, .etp = expert_mesh_.etp(), .ep_of = PlacementOf(layer)}, shape_.top_k);
}

Layout Layout::Whole(const ModelShape& shape) {
  Result<Layout> layout = Make(shape, {.mesh = Mesh(), .cluster = Cluster::OneNode(1)});
  SF_CHECK(layout.ok());
  return std::move(layout).value();
}

RankShard Layout::Shard(int rank) const {
  RankShard s{.rank = rank,
              .tp = mesh().Coordinate(rank, Axis::kTp),
              .cp = mesh().Coordinate(rank, Axis::kCp),
              .dp = mesh().Coordinate(rank, Axis::kDp),
              .pp = mesh().Coordinate(rank, Axis::kPp)};
  const ExpertMesh::Place place = expert_mesh_.PlaceOf(rank);
  s.ep = place.ep;
  s.etp = place.etp;
  s.edp = place.edp;
  s.layers = LayersOf(s.pp);
  s.heads = {output_.k[s.tp].begin / shape_.head_dim, output_.k[s.tp].end / shape_.head_dim};
  const int group = shape_.heads / shape_.kv_heads;
  s.kv_heads = {s.heads.begin / group, (s.heads.end + group - 1) / group};
  if (!down_.k.empty()) s.intermediate = down_.k[s.tp];
  if (!expert_down_.k.empty()) s.expert_intermediate = expert_down_.k[s.etp];
  if (!shared_down_.k.empty()) s.shared_intermediate = shared_down_.k[s.tp];
  s.vocab = ShareOf(shape_.vocab, tp(), s.tp);
  s.first_stage = s.pp == 0;
  s.last_stage = s.pp == pp() - 1;
  return s;
}

int Layout::RankAt(const Coordinates& at) const {
  int rank = mesh().Neighbour(0, Axis::kTp, at.tp);
  rank = mesh().Neighbour(rank, Axis::kCp, at.cp);
  rank = mesh().Neighbour(rank, Axis::kDp, at.dp);
  return mesh().Neighbour(rank, Axis::kPp, at.pp);
}

namespace {

// The largest U that divides cp and the query heads of every tp rank, so that every U neighbours of a context group share a
// node.
int ChooseUlysses(const Layout& layout) {
  const int cp = layout.cp();
  for (int u = cp; u > 1; --u) {
    if (cp % u != 0) continue;
    bool fits = true;
    for (int rank = 0; rank < layout.world() && fits; ++rank) {
      const RankShard shard = layout.Shard(rank);
      const int first = layout.mesh().Neighbour(rank, Axis::kCp, shard.cp / u * u);
      fits = shard.heads.size() % u == 0 && layout.cluster().NodeOf(first) == layout.cluster().NodeOf(rank);
    }
    if (fits) return u;
  }
  return 1;
}

}  // namespace

Status Layout::SetContext() {
  const ContextOptions& o = options_.context;
  context_ = {.size = cp(), .form = o.form, .chunk = shape_.attention_chunk, .interleave = o.interleave};
  if (cp() == 1) {
    context_.interleave = context_.chunk;
    return OkStatus();
  }
  const bool fast = shape_.numerics == Numerics::kFast;
  if (context_.interleave == 0) context_.interleave = fast && o.form == CpForm::kStriped ? 1 : context_.chunk;
  context_.by_token = context_.interleave % context_.chunk != 0;
  if (context_.by_token && !fast) {
    return InvalidArgument(fmt::format("--cp-kv-cache-interleave-size is {}: in reproducible mode keys and values rest by whole "
                                       "attention chunks; give a multiple of {}, a smaller --attention-chunk, or --numerics fast",
                                       o.interleave, context_.chunk));
  }
  if (context_.by_token && kPageTokens % context_.interleave != 0) {
    return InvalidArgument(fmt::format("--cp-kv-cache-interleave-size is {}: stripes of tokens divide a block of {}; give 1, 2, 4, 8 "
                                       "or 16, or a multiple of the attention chunk, {}",
                                       o.interleave, kPageTokens, context_.chunk));
  }
  if (o.ulysses > 0 && o.form != CpForm::kUlyssesRing) {
    return InvalidArgument("--hierarchical-context-parallel-sizes goes with --cp-comm-type a2a+p2p alone");
  }
  if (o.ulysses > 0 && cp() % o.ulysses != 0) {
    return InvalidArgument(fmt::format("--hierarchical-context-parallel-sizes: {} ranks that transpose heads do not divide cp, which is {}",
                                       o.ulysses, cp()));
  }
  context_.ulysses = o.form == CpForm::kUlysses       ? cp()
                     : o.form != CpForm::kUlyssesRing ? 1
                     : o.ulysses > 0                  ? o.ulysses
                                                      : ChooseUlysses(*this);
  for (int t = 0; t < tp(); ++t) {
    const int64_t heads = Shard(RankAt({.tp = t})).heads.size();
    if (heads % context_.ulysses == 0) continue;
    return InvalidArgument(fmt::format(
        "--cp-comm-type {} cannot run: {} ranks would share the {} query heads of tp rank {}, which {} does not divide; take "
        "p2p, all_gather or striped, or a2a+p2p with --hierarchical-context-parallel-sizes U,R where U divides {}",
        NameOf(o.form), context_.ulysses, heads, t, context_.ulysses, heads));
  }
  return OkStatus();
}

HeadShare Layout::UlyssesHeads(const RankShard& shard, int part) const {
  const int64_t each = shard.heads.size() / context_.ulysses;
  const int64_t group = shape_.heads / shape_.kv_heads;
  const Share heads{shard.heads.begin + part * each, shard.heads.begin + (part + 1) * each};
  return {.heads = heads, .kv_heads = {heads.begin / group, (heads.end + group - 1) / group}};
}

int64_t Layout::PageBytes(int64_t kv_heads) const {
  const int k_dim = shape_.k_dim > 0 ? shape_.k_dim : shape_.head_dim;
  const int v_dim = shape_.v_in_k ? 0 : shape_.v_dim > 0 ? shape_.v_dim : shape_.head_dim;
  return kv_heads * kPageTokens * (k_dim + v_dim) * shape_.kv_element_bytes;
}

std::string Layout::Identity() const {
  Fnv1a hash;
  for (const int ranks : cluster().ranks_per_node) hash.Add(int64_t{ranks});
  hash.Add(context_.interleave);
  for (const auto& [layer, placement] : options_.placements) {
    hash.Add(int64_t{layer});
    for (const int32_t ep : placement) hash.Add(int64_t{ep});
  }
  return fmt::format("{}, {} {:016x}", ToString(), expert_mesh_.ToString(), hash.value());
}

std::string Layout::ToString() const {
  std::string text = mesh().ToString();
  if (cp() > 1) {
    text += fmt::format(" {}", NameOf(context_.form));
    if (context_.form == CpForm::kUlyssesRing) text += fmt::format(" {},{}", context_.ulysses, context_.ring());
  }
  if (sequence_parallel()) text += " with sequence parallelism";
  if (dispatches_) text += fmt::format(", experts {} {}", expert_mesh_.ToString(), NameOf(all2all_));
  if (cluster().nodes() > 1) text += fmt::format(" on {} nodes", cluster().nodes());
  return text;
}

}  // namespace sixfold
