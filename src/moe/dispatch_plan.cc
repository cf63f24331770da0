#include "moe/dispatch_plan.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/check.h"

namespace sixfold {

namespace {

// Where members stand. Node numbers and places of all members are looked up once.
class Topology {
 public:
  Topology(const Cluster& cluster, const ExpertGroup& group) {
    for (int m = 0; m < static_cast<int>(group.ranks.size()); ++m) {
      const int rank = group.ranks[m];
      const int node = cluster.NodeOf(rank);
      int first = rank;
      while (first > 0 && cluster.NodeOf(first - 1) == node) --first;
      node_.push_back(node);
      place_.push_back(rank - first);
      on_node_[node].push_back(m);
    }
  }

  int NodeOf(int member) const { return node_[member]; }

  // The member of `node` at the source's own place, or the nearest there is when the group has not all ranks of the node.
  int Relay(int source, int node) const {
    const std::vector<int>& members = on_node_.at(node);
    for (const int m : members) {
      if (place_[m] == place_[source]) return m;
    }
    return members[place_[source] % members.size()];
  }

 private:
  std::vector<int> node_, place_;
  std::map<int, std::vector<int>> on_node_;
};

// Slots of one row by member that computes them, ascending.
std::map<int, int32_t> SlotsByMember(const ExpertGroup& group, std::span<const int32_t> experts) {
  std::map<int, int32_t> slots;
  for (const int32_t e : experts) {
    SF_CHECK_LT(static_cast<size_t>(e), group.expert_members.size());
    for (const int m : group.expert_members[e]) ++slots[m];
  }
  return slots;
}

void AddRelayed(const Topology& topology, int source, int32_t row, const std::map<int, int32_t>& slots, DispatchPlan* plan) {
  std::map<int, int32_t> by_node;
  for (const auto& [member, count] : slots) by_node[topology.NodeOf(member)] += count;
  std::map<int, int32_t> first;  // by receiver, so that copies stand in its order
  for (const auto& [node, count] : by_node) {
    if (node != topology.NodeOf(source)) {
      first[topology.Relay(source, node)] = count;
      continue;
    }
    for (const auto& [member, own] : slots) {
      if (topology.NodeOf(member) == node && member != source) first[member] = own;
    }
  }
  for (const auto& [to, count] : first) plan->first.push_back({source, row, source, to, count});
  for (const auto& [member, count] : slots) {
    const int node = topology.NodeOf(member);
    if (node == topology.NodeOf(source)) continue;
    const int relay = topology.Relay(source, node);
    if (member != relay) plan->second.push_back({source, row, relay, member, count});
  }
}

}  // namespace

DispatchPlan PlanDispatch(All2AllBackend backend, const Cluster& cluster, const ExpertGroup& group, int top_k,
                          std::span<const MemberRoutes> routes) {
  SF_CHECK_EQ(routes.size(), group.ranks.size());
  const Topology topology(cluster, group);
  DispatchPlan plan;
  for (int source = 0; source < static_cast<int>(routes.size()); ++source) {
    const std::vector<int32_t>& experts = routes[source].experts;
    SF_CHECK_EQ(experts.size() % top_k, 0u);
    for (size_t row = 0; row < experts.size() / top_k; ++row) {
      const std::map<int, int32_t> slots = SlotsByMember(group, std::span(experts).subspan(row * top_k, top_k));
      if (backend == All2AllBackend::kHierarchical) {
        AddRelayed(topology, source, static_cast<int32_t>(row), slots, &plan);
        continue;
      }
      for (const auto& [member, count] : slots) {
        if (member != source) plan.first.push_back({source, static_cast<int32_t>(row), source, member, count});
      }
    }
  }
  return plan;
}

Ledger TrafficOf(const DispatchPlan& plan, const Cluster& cluster, const ExpertGroup& group, CombineForm form,
                 const RowBytes& bytes) {
  Ledger ledger;
  const auto link = [&](int a, int b) { return cluster.LinkBetween(group.ranks[a], group.ranks[b]).link; };
  std::array<bool, kLinkClassCount> has_link{};
  for (size_t a = 0; a < group.ranks.size(); ++a) {
    for (size_t b = a + 1; b < group.ranks.size(); ++b) {
      has_link[static_cast<int>(link(static_cast<int>(a), static_cast<int>(b)))] = true;
    }
  }
  const int legs = plan.second.empty() ? 1 : 2;
  for (int l = 0; l < kLinkClassCount; ++l) {
    if (has_link[l]) ledger[{Axis::kEp, CommOp::kAllToAll, static_cast<LinkClass>(l)}].count += 2 * legs;
  }
  for (const std::vector<RowCopy>* leg : {&plan.first, &plan.second}) {
    for (const RowCopy& copy : *leg) {
      const int64_t back = form == CombineForm::kSlots ? copy.slots : 1;
      ledger[{Axis::kEp, CommOp::kAllToAll, link(copy.from, copy.to)}].bytes += bytes.dispatch + back * bytes.combine;
    }
  }
  return ledger;
}

}  // namespace sixfold
