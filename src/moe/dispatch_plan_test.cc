// Copies of rows to experts: the third seed document's journey, and what must hold for any routes.
#include "moe/dispatch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/random.h"

namespace sixfold {
namespace {

// Four nodes of eight; the experts of a stage of 16 ranks, two a rank.
const Cluster kCluster = Cluster::EqualNodes(32, 4).value();

ExpertGroup Stage(int stage) {
  ExpertGroup group;
  for (int r = 0; r < 16; ++r) group.ranks.push_back(16 * stage + r);
  for (int e = 0; e < 32; ++e) group.expert_members.push_back({e / 2});
  return group;
}

DispatchPlan OneToken(All2AllBackend backend, int stage, int home, std::vector<int32_t> experts) {
  std::vector<MemberRoutes> routes(16);
  routes[home - 16 * stage].experts = std::move(experts);
  return PlanDispatch(backend, kCluster, Stage(stage), 2, routes);
}

int Crossings(const DispatchPlan& plan, int stage) {
  int crossings = 0;
  for (const auto* leg : {&plan.first, &plan.second}) {
    for (const RowCopy& c : *leg) crossings += kCluster.NodeOf(16 * stage + c.from) != kCluster.NodeOf(16 * stage + c.to);
  }
  return crossings;
}

// The journey's experts by layer; its ranks are 16 * stage + expert / 2.
const std::vector<std::vector<int32_t>> kJourney = {{26, 4}, {22, 8}, {30, 16}, {2, 12}, {14, 24}, {0, 18}, {8, 26}, {10, 30}};

TEST(DispatchPlan, FirstLayerOfTheJourney) {
  // 11 to 13 on its own node; 11 over the wire to 3, the relay at its place, and on to 2.
  const DispatchPlan plan = OneToken(All2AllBackend::kHierarchical, 0, 11, {27, 5});
  EXPECT_EQ(plan.first, (std::vector<RowCopy>{{11, 0, 11, 3, 1}, {11, 0, 11, 13, 1}}));
  EXPECT_EQ(plan.second, (std::vector<RowCopy>{{11, 0, 3, 2, 1}}));
}

TEST(DispatchPlan, BothExpertsOfOneNodeCrossOnce) {
  // Layer 4: experts 2 and 12 lie on ranks 1 and 6; one copy crosses, two go on.
  const DispatchPlan plan = OneToken(All2AllBackend::kHierarchical, 0, 11, {2, 12});
  EXPECT_EQ(plan.first, (std::vector<RowCopy>{{11, 0, 11, 3, 2}}));
  EXPECT_EQ(plan.second, (std::vector<RowCopy>{{11, 0, 3, 1, 1}, {11, 0, 3, 6, 1}}));
}

TEST(DispatchPlan, JourneyCrossesNodesFourteenTimesAndSixteenWithoutRelays) {
  int relayed = 0, flat = 0;
  for (size_t layer = 0; layer < kJourney.size(); ++layer) {
    const int stage = layer < 4 ? 0 : 1, home = layer < 4 ? 11 : 27;
    relayed += 2 * Crossings(OneToken(All2AllBackend::kHierarchical, stage, home, kJourney[layer]), stage);
    flat += 2 * Crossings(OneToken(All2AllBackend::kFlat, stage, home, kJourney[layer]), stage);
  }
  EXPECT_EQ(relayed, 14);
  EXPECT_EQ(flat, 16);
}

TEST(DispatchPlan, TrafficOfOneCrossing) {
  const DispatchPlan plan = OneToken(All2AllBackend::kHierarchical, 0, 11, {2, 12});
  const LedgerKey wire{Axis::kEp, CommOp::kAllToAll, LinkClass::kEthernet};
  const LedgerKey inside{Axis::kEp, CommOp::kAllToAll, LinkClass::kShm};
  const RowBytes bytes{.dispatch = 100, .combine = 10};
  const Ledger slots = TrafficOf(plan, kCluster, Stage(0), CombineForm::kSlots, bytes);
  EXPECT_EQ(slots.at(wire), (LedgerEntry{4, 100 + 2 * 10}));
  EXPECT_EQ(slots.at(inside), (LedgerEntry{4, 2 * (100 + 10)}));
  const Ledger sums = TrafficOf(plan, kCluster, Stage(0), CombineForm::kNodeSums, bytes);
  EXPECT_EQ(sums.at(wire).bytes, 100 + 10);
}

// Follows every copy: each slot's row must be where its expert is, and nothing travels twice over a link for nothing.
void ExpectEveryRowArrives(All2AllBackend backend, const Cluster& cluster, const ExpertGroup& group, int top_k,
                           const std::vector<MemberRoutes>& routes) {
  const DispatchPlan plan = PlanDispatch(backend, cluster, group, top_k, routes);
  std::set<std::tuple<int, int32_t, int>> holds;  // source, row, member
  std::set<std::tuple<int, int32_t, int>> wires;  // source, row, node reached
  for (int m = 0; m < static_cast<int>(routes.size()); ++m) {
    for (size_t r = 0; r < routes[m].experts.size() / top_k; ++r) holds.insert({m, static_cast<int32_t>(r), m});
  }
  for (const auto* leg : {&plan.first, &plan.second}) {
    for (const RowCopy& c : *leg) {
      EXPECT_TRUE(holds.contains({c.source, c.row, c.from}));
      EXPECT_TRUE(holds.insert({c.source, c.row, c.to}).second) << "a row comes twice";
      EXPECT_GT(c.slots, 0);
      const int to_node = cluster.NodeOf(group.ranks[c.to]);
      if (backend == All2AllBackend::kHierarchical && to_node != cluster.NodeOf(group.ranks[c.from])) {
        EXPECT_TRUE(wires.insert({c.source, c.row, to_node}).second) << "a node is reached twice";
      }
    }
  }
  for (int m = 0; m < static_cast<int>(routes.size()); ++m) {
    for (size_t i = 0; i < routes[m].experts.size(); ++i) {
      for (const int at : group.expert_members[routes[m].experts[i]]) {
        EXPECT_TRUE(holds.contains({m, static_cast<int32_t>(i / top_k), at}));
      }
    }
  }
}

TEST(DispatchPlan, EveryRowArrivesForAnyRoutes) {
  uint32_t draw = 0;
  const auto below = [&](int n) {
    return static_cast<int>(RandomUniform({.seed = 5, .position = draw++, .purpose = RandomPurpose::kTest}) * n);
  };
  for (int round = 0; round < 60; ++round) {
    const int nodes = 1 + below(4), each = 1 + below(5), ranks = nodes * each;
    const Cluster cluster = Cluster::EqualNodes(ranks, nodes).value();
    ExpertGroup group;
    // Sometimes a group that has not all ranks.
    for (int r = 0; r < ranks; ++r) {
      if (r == 0 || round % 3 != 0 || below(3) > 0) group.ranks.push_back(r);
    }
    const auto members = static_cast<int>(group.ranks.size());
    const int experts = 1 + below(12), top_k = 1 + below(std::min(experts, 4));
    for (int e = 0; e < experts; ++e) group.expert_members.push_back({below(members)});
    std::vector<MemberRoutes> routes(members);
    for (MemberRoutes& of : routes) {
      for (int i = below(5) * top_k; i > 0; --i) of.experts.push_back(below(experts));
    }
    for (const auto backend : {All2AllBackend::kFlat, All2AllBackend::kHierarchical}) {
      ExpectEveryRowArrives(backend, cluster, group, top_k, routes);
    }
  }
}

}  // namespace
}  // namespace sixfold
