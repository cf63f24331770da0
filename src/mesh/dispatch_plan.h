// Which rank sends which rows where, so that every token meets its experts and what they made of it comes back: a pure
// function from routes to copies. Engine, byte prediction and tracer all ask here.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mesh/cluster.h"
#include "mesh/traffic.h"

namespace sixfold {

// Flat sends a row once to every rank that has one of its experts. Hierarchical sends it once to every other node that has
// one, to the rank there with the sender's own place on its node (the relay), which hands it on inside; outputs come back the
// same way.
enum class All2AllBackend : uint8_t { kFlat, kHierarchical };
std::string_view NameOf(All2AllBackend backend);  // "flat", "hierarchical"

// How outputs come back through a relay: every slot by itself (kReproducible), or weighted and summed per row on the node, which
// is one vector however many experts the node has (kFast).
enum class CombineForm : uint8_t { kSlots, kNodeSums };

// The ranks that exchange rows, and where their experts are. A member is named by its index in `ranks`; member ep * etp + t
// has part t of the experts of `ep`.
struct ExpertGroup {
  std::vector<int> ranks;       // global, ascending
  int etp = 1;                  // members that share each expert
  std::vector<int32_t> ep_of;   // [experts]

  int members() const { return static_cast<int>(ranks.size()); }
  int ep() const { return members() / etp; }
};

// A copy of row `row` of member `source`, from one member to another.
struct RowCopy {
  int32_t source = 0, row = 0, from = 0, to = 0;
  bool operator==(const RowCopy&) const = default;
};

// One output on its way back: of a slot (row * top_k + s), or of a row where a relay has summed.
struct OutputCopy {
  int32_t source = 0, index = 0, from = 0, to = 0;
  bool operator==(const OutputCopy&) const = default;
};

// One application of an expert to a row.
struct ExpertSlot {
  int32_t expert = 0, source = 0, slot = 0;  // slot of the source: row * top_k + s
  bool operator==(const ExpertSlot&) const = default;
};

// What a member tells the others of each of its slots, in 4-byte words: the expert; its weight too, where relays sum.
inline int RouteWords(CombineForm form) { return form == CombineForm::kSlots ? 1 : 2; }

// Every member makes the same plan, so that senders and receivers agree on the order of what crosses without a word.
// A member never copies to itself.
struct DispatchPlan {
  // Legs of the way out: from the rows' own members; from relays. By source, row, to.
  std::vector<RowCopy> out[2];
  // [ep]: what its members compute, by expert, source, slot. Of n slots member t returns those of ShareOf(n, etp, t): the sums
  // of the etp parts are scattered so.
  std::vector<std::vector<ExpertSlot>> work;
  // Legs of the way back: from the members that computed, to relays or straight to the source; from relays to sources. In the
  // order of work, ep by ep; where relays sum, the second leg by relay, source, row.
  std::vector<OutputCopy> back[2];
};

// Bytes of one row on its way out, and of one output on its way back.
struct RowBytes {
  int64_t dispatch = 0, combine = 0;
};

// Thread rule: const functions from any thread.
class DispatchPlanner {
 public:
  DispatchPlanner() = default;  // of no ranks
  DispatchPlanner(All2AllBackend backend, CombineForm form, const Cluster& cluster, ExpertGroup group, int top_k);

  const ExpertGroup& group() const { return group_; }
  int top_k() const { return top_k_; }
  CombineForm form() const { return form_; }
  // One when no relay stands between any two members.
  int legs() const { return legs_; }
  int NodeOf(int member) const { return node_[member]; }  // nodes of the group count from 0
  // Who on another node takes in the rows of `source`: the member at the source's own place, or one that the place chooses when
  // the group has no rank there.
  int Relay(int source, int node) const;

  // routes: [members], experts [rows * top_k] of each member's rows. Experts must be in range.
  DispatchPlan Plan(std::span<const std::span<const int32_t>> routes) const;
  // Payload of the plan under axis ep: what the engine sends for it. One operation a leg and direction.
  Ledger TrafficOf(const DispatchPlan& plan, const RowBytes& bytes) const;
  // The expectation over uniform routing (top_k different experts, each set as likely as another) of the same.
  Ledger ExpectedTraffic(std::span<const int64_t> rows_of_members, const RowBytes& bytes) const;

 private:
  bool Direct(int source, int member) const { return legs_ == 1 || node_[source] == node_[member]; }
  // Of one row: the ep places that it needs, and the receivers of its first leg. Kept from row to row.
  struct RowScratch {
    std::vector<int32_t> eps, first;
  };
  void PlanRow(int source, int row, std::span<const int32_t> experts, RowScratch* scratch, DispatchPlan* plan) const;
  void PlanWork(std::span<const std::span<const int32_t>> routes, DispatchPlan* plan) const;
  void PlanReturn(DispatchPlan* plan) const;
  LinkClass LinkOf(int a, int b) const { return node_[a] == node_[b] ? inside_ : between_; }
  Ledger Operations() const;

  ExpertGroup group_;
  CombineForm form_ = CombineForm::kSlots;
  int top_k_ = 1;
  int legs_ = 1;
  std::vector<int> node_;                  // [members]
  std::vector<int> place_;                 // [members] on their nodes
  std::vector<std::vector<int>> on_node_;  // [nodes] members, ascending: so are their places
  LinkClass inside_ = LinkClass::kShm, between_ = LinkClass::kShm;
};

}  // namespace sixfold
