// The layout: model shape × mesh × cluster. Which rank holds what, which partial sums it sends, what cannot run and what
// could instead. The one source of shards, groups and bytes for engine, planner, simulator and tracer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "mesh/axes.h"
#include "mesh/cluster.h"
#include "mesh/model_shape.h"
#include "mesh/tree_cut.h"

namespace sixfold {

struct LayoutOptions {
  Mesh mesh;
  Cluster cluster;  // of exactly mesh.world() ranks
  bool sequence_parallel = false;
};

// A reduction over K that tp cuts: the k of each member, and the nodes of the tree.
struct KCut {
  TreeCut tree;
  std::vector<Share> k;                          // [tp] elements of the reduction; may be empty
  std::vector<std::vector<Share>> node_k;        // [tp][nodes of the member]: elements of each node
  std::vector<std::vector<Leaves>> node_leaves;  // [tp][nodes]: the node's own leaves, from 0
};

// What one rank holds.
struct RankShard {
  int rank = 0;
  int tp = 0, dp = 0, pp = 0;     // coordinates
  Share layers;                   // of the model's
  Share heads, kv_heads;          // query heads, and the K/V heads that they read
  Share intermediate;             // columns of gate and up, k of down
  Share expert_intermediate;
  Share vocab;                    // rows of the embedding (first stage) and of the head (last stage)
  bool first_stage = true, last_stage = true;
};

// A value. Thread rule: read-only after Make.
class Layout {
 public:
  // kInvalidArgument says what cannot run, why, and names the nearest layouts that can.
  static Result<Layout> Make(const ModelShape& shape, const LayoutOptions& options);
  // One rank holds everything.
  static Layout Whole(const ModelShape& shape);

  const ModelShape& shape() const { return shape_; }
  const Mesh& mesh() const { return options_.mesh; }
  const Cluster& cluster() const { return options_.cluster; }
  int world() const { return mesh().world(); }
  int tp() const { return mesh().size(Axis::kTp); }
  int dp() const { return mesh().size(Axis::kDp); }
  int pp() const { return mesh().size(Axis::kPp); }
  bool sequence_parallel() const { return options_.sequence_parallel && tp() > 1; }

  RankShard Shard(int rank) const;
  Share LayersOf(int stage) const { return ShareOf(shape_.layers(), pp(), stage); }
  // The ranks of a replica's stage in order of tp.
  std::vector<int> TpGroup(int dp, int pp) const;
  int RankAt(int tp, int dp, int pp) const;

  const KCut& output_cut() const { return output_; }
  const KCut& down_cut() const { return down_; }
  const KCut& expert_down_cut() const { return expert_down_; }

  std::string ToString() const;  // "tp2,pp2 with sequence parallelism on 2 nodes"

 private:
  Layout() = default;
  static Status Check(const ModelShape& shape, const LayoutOptions& options);

  ModelShape shape_;
  LayoutOptions options_;
  KCut output_, down_, expert_down_;
};

}  // namespace sixfold
