// The layout: model shape × mesh × cluster. Which rank holds what, which partial sums it sends, what cannot run and what
// could instead. The one source of shards, groups and bytes for engine, planner, simulator and tracer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "mesh/axes.h"
#include "mesh/cluster.h"
#include "mesh/context.h"
#include "mesh/dispatch_plan.h"
#include "mesh/expert_mesh.h"
#include "mesh/model_shape.h"
#include "mesh/tree_cut.h"

namespace sixfold {

// Which ep coordinate has each expert: [experts]. Without one, experts go to ep coordinates in ascending order, in shares that
// differ by at most one.
using ExpertPlacement = std::vector<int32_t>;

struct LayoutOptions {
  Mesh mesh;
  Cluster cluster;  // of exactly mesh.world() ranks
  bool sequence_parallel = false;
  ExpertMeshRequest experts = {};
  std::optional<All2AllBackend> all2all = {};  // default: hierarchical when experts' rows cross nodes
  std::map<int, ExpertPlacement> placements = {};  // by layer of the model
  ContextOptions context = {};
};

// A reduction over K that a group cuts (tp; etp inside an expert): the k of each member, and the nodes of the tree.
struct KCut {
  TreeCut tree;
  std::vector<Share> k;                          // [members] elements of the reduction; may be empty
  std::vector<std::vector<Share>> node_k;        // [members][nodes of the member]: elements of each node
  std::vector<std::vector<Leaves>> node_leaves;  // [members][nodes]: the node's own leaves, from 0
};

// What one rank holds.
struct RankShard {
  int rank = 0;
  int tp = 0, cp = 0, dp = 0, pp = 0;  // coordinates
  int ep = 0, etp = 0, edp = 0;   // in the experts' mesh
  Share layers;                   // of the model's
  Share heads, kv_heads;          // query heads, and the K/V heads that they read
  Share intermediate;             // columns of gate and up, k of down
  Share expert_intermediate;
  Share shared_intermediate;      // of the shared experts together
  Share vocab;                    // rows of the head (last stage)
  bool first_stage = true, last_stage = true;
};

// Query heads, and the K/V heads that they read, as rank or part of a rank has them.
struct HeadShare {
  Share heads, kv_heads;  // of the model's
};

// A value. Thread rule: read-only after Make.
class Layout {
 public:
  // kInvalidArgument says what cannot run, why, and names the nearest layouts that can.
  static Result<Layout> Make(const ModelShape& shape, const LayoutOptions& options);
  // One rank holds everything.
  static Layout Whole(const ModelShape& shape);

  const ModelShape& shape() const { return shape_; }
  const LayoutOptions& options() const { return options_; }
  const Mesh& mesh() const { return options_.mesh; }
  const Cluster& cluster() const { return options_.cluster; }
  int world() const { return mesh().world(); }
  int tp() const { return mesh().size(Axis::kTp); }
  int cp() const { return mesh().size(Axis::kCp); }
  int dp() const { return mesh().size(Axis::kDp); }
  int pp() const { return mesh().size(Axis::kPp); }
  bool sequence_parallel() const { return options_.sequence_parallel && tp() > 1; }

  RankShard Shard(int rank) const;
  Share LayersOf(int stage) const { return ShareOf(shape_.layers(), pp(), stage); }
  // Experts. `dispatches`: rows travel to their experts and back, among the ranks of DispatchGroup. Otherwise every rank has a
  // part of every expert (ep = 1, and the ranks that share an expert are those that share the rows), and parts are summed as
  // those of a dense FFN.
  const ExpertMesh& expert_mesh() const { return expert_mesh_; }
  bool dispatches() const { return dispatches_; }
  All2AllBackend all2all() const { return all2all_; }
  CombineForm combine_form() const {
    return shape_.numerics == Numerics::kFast ? CombineForm::kNodeSums : CombineForm::kSlots;
  }
  // [experts] of a layer: which ep coordinate has each.
  ExpertPlacement PlacementOf(int layer) const;
  // Experts of a layer that an ep coordinate has, ascending.
  std::vector<int> ExpertsAt(int layer, int ep) const;
  // The ranks that exchange rows with `rank`: of its stage and its edp coordinate, etp fastest, then ep; and those of them that
  // share its experts.
  std::vector<int> DispatchGroup(int rank) const;
  std::vector<int> EtpGroup(int rank) const { return expert_mesh_.Group(rank, Axis::kEtp); }
  DispatchPlanner PlannerFor(int layer, const std::vector<int>& dispatch_group) const;
  // Of the rows that a tp group computes in a micro-batch, those that a tp coordinate sends to experts: each row is one rank's.
  Share DispatchRows(int64_t rows, int tp_coordinate) const { return ShareOf(rows, tp(), tp_coordinate); }

  struct Coordinates {
    int tp = 0, cp = 0, dp = 0, pp = 0;
  };
  int RankAt(const Coordinates& at) const;
  // The ranks that share a rank's layers and rows, in order of tp; and those that share its layers, heads and requests, in
  // order of cp.
  std::vector<int> TpGroup(int rank) const { return mesh().Group(rank, Axis::kTp); }
  std::vector<int> ContextGroup(int rank) const { return mesh().Group(rank, Axis::kCp); }
  const ContextRule& context() const { return context_; }
  // Of the heads of `shard` those that number `part` of context().ulysses ranks attends with.
  HeadShare UlyssesHeads(const RankShard& shard, int part) const;
  // Bytes of one page (16 positions) of K and V of some K/V heads in one layer.
  int64_t PageBytes(int64_t kv_heads) const;

  const KCut& output_cut() const { return output_; }
  const KCut& down_cut() const { return down_; }
  const KCut& expert_down_cut() const { return expert_down_; }
  const KCut& shared_down_cut() const { return shared_down_; }

  std::string ToString() const;  // "tp2,pp2 with sequence parallelism on 2 nodes"
  // ToString and a hash of all that it leaves out: equal for equal layouts alone.
  std::string Identity() const;

 private:
  Layout() = default;
  static Status Check(const ModelShape& shape, const LayoutOptions& options);
  Status SetExperts();
  Status SetContext();
  Status CheckPlacements() const;

  ModelShape shape_;
  LayoutOptions options_;
  ExpertMesh expert_mesh_;
  bool dispatches_ = false;
  All2AllBackend all2all_ = All2AllBackend::kFlat;
  ContextRule context_;
  KCut output_, down_, expert_down_, shared_down_;
};

}  // namespace sixfold
