// Which rank sends which rows where, so that every token meets its experts and comes back: a pure function from routes to
// copies. Flat sends a row once to every rank that has one of its experts. Hierarchical sends it once to every other node, to
// the rank there with the sender's own place on its node (the relay), which hands it on inside.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/cluster.h"
#include "mesh/traffic.h"

namespace sixfold {

enum class All2AllBackend : uint8_t { kFlat, kHierarchical };
// How parts come back through a relay: every slot by itself (kReproducible), or summed per token on the node (kFast).
enum class CombineForm : uint8_t { kSlots, kNodeSums };

// The ranks that exchange rows, and where their experts are.
struct ExpertGroup {
  std::vector<int> ranks;                        // global, ascending; members are named by their index here
  std::vector<std::vector<int>> expert_members;  // [experts]: members that have it (several under etp), ascending
};

// Rows of one member: experts [rows * top_k].
struct MemberRoutes {
  std::vector<int32_t> experts;
};

// One copy of one row on its way out.
struct RowCopy {
  int source = 0;     // member whose row it is
  int32_t row = 0;    // of the source
  int from = 0, to = 0;
  int32_t slots = 0;  // expert slots that `to` computes, or hands on to its node
  bool operator==(const RowCopy&) const = default;
};

// Copies of the first leg (from the rows' own ranks) and of the second (from relays); both ordered by source, row, to. A rank
// never copies to itself.
struct DispatchPlan {
  std::vector<RowCopy> first, second;
};

// routes: [members]. Experts must be in range.
DispatchPlan PlanDispatch(All2AllBackend backend, const Cluster& cluster, const ExpertGroup& group, int top_k,
                          std::span<const MemberRoutes> routes);

struct RowBytes {
  int64_t dispatch = 0, combine = 0;  // of one row on its way out; of one slot, or of one sum, on its way back
};
// Payload of both directions under axis ep, op all_to_all: what the engine sends for this plan. One operation a leg and
// direction.
Ledger TrafficOf(const DispatchPlan& plan, const Cluster& cluster, const ExpertGroup& group, CombineForm form,
                 const RowBytes& bytes);

}  // namespace sixfold
