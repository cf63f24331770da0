// Copies of rows to experts and back: the third seed document's journey, and what must hold for any routes.
#include "mesh/dispatch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "base/random.h"
#include "mesh/axes.h"
#include "mesh/expert_formulas.h"

namespace sixfold {
namespace {

// Four nodes of eight; the experts of a stage of 16 ranks, two a rank.
const Cluster kCluster = Cluster::EqualNodes(32, 4).value();

ExpertGroup Stage(int stage) {
  ExpertGroup group;
  for (int r = 0; r < 16; ++r) group.ranks.push_back(16 * stage + r);
  for (int e = 0; e < 32; ++e) group.ep_of.push_back(e / 2);
  return group;
}

using Routes = std::vector<std::vector<int32_t>>;

DispatchPlan PlanOf(const DispatchPlanner& planner, const Routes& routes) {
  return planner.Plan(std::vector<std::span<const int32_t>>(routes.begin(), routes.end()));
}

DispatchPlanner PlannerOf(All2AllBackend backend, int stage, CombineForm form = CombineForm::kSlots) {
  return DispatchPlanner(backend, form, kCluster, Stage(stage), 2);
}

DispatchPlan OneToken(All2AllBackend backend, int stage, int home, std::vector<int32_t> experts) {
  Routes routes(16);
  routes[home - 16 * stage] = std::move(experts);
  return PlanOf(PlannerOf(backend, stage), routes);
}

// Rows that crossed nodes on the way out; the way back crosses as often (a relay sends one message).
int Crossings(const DispatchPlan& plan, int stage) {
  int crossings = 0;
  for (const auto& leg : plan.out) {
    for (const RowCopy& c : leg) crossings += kCluster.NodeOf(16 * stage + c.from) != kCluster.NodeOf(16 * stage + c.to);
  }
  return crossings;
}

// The journey's experts by layer; its ranks are 16 * stage + expert / 2.
const Routes kJourney = {{26, 4}, {22, 8}, {30, 16}, {2, 12}, {14, 24}, {0, 18}, {8, 26}, {10, 30}};

TEST(DispatchPlan, FirstLayerOfTheJourney) {
  // 11 to 13 on its own node; 11 over the wire to 3, the relay at its place, and on to 2. Outputs go the same way back.
  const DispatchPlan plan = OneToken(All2AllBackend::kHierarchical, 0, 11, {27, 5});
  EXPECT_EQ(plan.out[0], (std::vector<RowCopy>{{11, 0, 11, 3}, {11, 0, 11, 13}}));
  EXPECT_EQ(plan.out[1], (std::vector<RowCopy>{{11, 0, 3, 2}}));
  EXPECT_EQ(plan.work[2], (std::vector<ExpertSlot>{{5, 11, 1}}));
  EXPECT_EQ(plan.work[13], (std::vector<ExpertSlot>{{27, 11, 0}}));
  EXPECT_EQ(plan.back[0], (std::vector<OutputCopy>{{11, 1, 2, 3}, {11, 0, 13, 11}}));
  EXPECT_EQ(plan.back[1], (std::vector<OutputCopy>{{11, 1, 3, 11}}));
}

TEST(DispatchPlan, BothExpertsOfOneNodeCrossOnce) {
  // Layer 4: experts 2 and 12 lie on ranks 1 and 6; one copy crosses, two go on.
  const DispatchPlan plan = OneToken(All2AllBackend::kHierarchical, 0, 11, {2, 12});
  EXPECT_EQ(plan.out[0], (std::vector<RowCopy>{{11, 0, 11, 3}}));
  EXPECT_EQ(plan.out[1], (std::vector<RowCopy>{{11, 0, 3, 1}, {11, 0, 3, 6}}));
  // Unsummed, both outputs cross; summed on the node, one.
  EXPECT_EQ(plan.back[1], (std::vector<OutputCopy>{{11, 0, 3, 11}, {11, 1, 3, 11}}));
  Routes routes(16);
  routes[11] = {2, 12};
  const DispatchPlan summed = PlanOf(PlannerOf(All2AllBackend::kHierarchical, 0, CombineForm::kNodeSums), routes);
  EXPECT_EQ(summed.back[0], plan.back[0]);
  EXPECT_EQ(summed.back[1], (std::vector<OutputCopy>{{11, 0, 3, 11}}));
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
  const Ledger ledger =
      PlannerOf(All2AllBackend::kHierarchical, 0).TrafficOf(plan, {.dispatch = 100, .combine = 10});
  EXPECT_EQ(ledger.at({Axis::kEp, CommOp::kDispatch, LinkClass::kEthernet}), (LedgerEntry{2, 100}));
  EXPECT_EQ(ledger.at({Axis::kEp, CommOp::kDispatch, LinkClass::kShm}), (LedgerEntry{2, 200}));
  EXPECT_EQ(ledger.at({Axis::kEp, CommOp::kCombine, LinkClass::kEthernet}), (LedgerEntry{2, 20}));
  EXPECT_EQ(ledger.at({Axis::kEp, CommOp::kCombine, LinkClass::kShm}), (LedgerEntry{2, 20}));
}

// Follows every copy: each slot's row must be where its expert is, each output must come home once, and nothing travels twice
// over a link for nothing.
void ExpectEverythingArrives(const DispatchPlanner& planner, const Cluster& cluster, const Routes& routes) {
  const ExpertGroup& group = planner.group();
  const DispatchPlan plan = PlanOf(planner, routes);
  const int top_k = planner.top_k();
  std::set<std::tuple<int, int32_t, int>> holds;  // source, row, member
  std::set<std::tuple<int, int32_t, int>> wires;  // source, row, node reached
  for (int m = 0; m < group.members(); ++m) {
    for (size_t r = 0; r < routes[m].size() / top_k; ++r) holds.insert({m, static_cast<int32_t>(r), m});
  }
  for (const auto& leg : plan.out) {
    for (const RowCopy& c : leg) {
      EXPECT_TRUE(holds.contains({c.source, c.row, c.from}));
      EXPECT_TRUE(holds.insert({c.source, c.row, c.to}).second) << "a row comes twice";
      const int to_node = cluster.NodeOf(group.ranks[c.to]);
      if (planner.legs() == 2 && to_node != cluster.NodeOf(group.ranks[c.from])) {
        EXPECT_TRUE(wires.insert({c.source, c.row, to_node}).second) << "a node is reached twice";
      }
    }
  }
  std::map<std::pair<int, int32_t>, int> at;  // source, slot: who has its output
  for (int ep = 0; ep < group.ep(); ++ep) {
    const std::vector<ExpertSlot>& work = plan.work[ep];
    for (size_t i = 0; i < work.size(); ++i) {
      const ExpertSlot& w = work[i];
      EXPECT_EQ(routes[w.source][w.slot], w.expert);
      EXPECT_EQ(group.ep_of[w.expert], ep);
      for (int t = 0; t < group.etp; ++t) {
        EXPECT_TRUE(holds.contains({w.source, w.slot / top_k, ep * group.etp + t}));
        const Share share = ShareOf(static_cast<int64_t>(work.size()), group.etp, t);
        const auto index = static_cast<int64_t>(i);
        if (index < share.begin || index >= share.end) continue;
        EXPECT_TRUE(at.insert({{w.source, w.slot}, ep * group.etp + t}).second);
      }
    }
  }
  size_t slots = 0;
  for (const auto& of : routes) slots += of.size();
  EXPECT_EQ(at.size(), slots) << "every slot is computed once";
  if (planner.form() == CombineForm::kNodeSums) return;
  for (const auto& leg : plan.back) {
    for (const OutputCopy& c : leg) {
      int& where = at.at({c.source, c.index});
      EXPECT_EQ(where, c.from);
      where = c.to;
    }
  }
  for (const auto& [slot, where] : at) EXPECT_EQ(where, slot.first) << "an output did not come home";
}

TEST(DispatchPlan, EverythingArrivesForAnyRoutes) {
  uint32_t draw = 0;
  const auto below = [&](int n) {
    return static_cast<int>(RandomUniform({.seed = 5, .position = draw++, .purpose = RandomPurpose::kTest}) * n);
  };
  for (int round = 0; round < 80; ++round) {
    const int nodes = 1 + below(4), each = 1 + below(5), ranks = nodes * each;
    const Cluster cluster = Cluster::EqualNodes(ranks, nodes).value();
    ExpertGroup group;
    // Sometimes a group that has not all ranks, sometimes experts in parts.
    for (int r = 0; r < ranks; ++r) {
      if (r == 0 || round % 3 != 0 || below(3) > 0) group.ranks.push_back(r);
    }
    if (group.members() % 2 == 0 && below(2) == 0) group.etp = 2;
    const int experts = 1 + below(12), top_k = 1 + below(std::min(experts, 4));
    for (int e = 0; e < experts; ++e) group.ep_of.push_back(below(group.ep()));
    Routes routes(group.members());
    for (auto& of : routes) {
      for (int i = below(5) * top_k; i > 0; --i) of.push_back(below(experts));
    }
    for (const auto backend : {All2AllBackend::kFlat, All2AllBackend::kHierarchical}) {
      for (const auto form : {CombineForm::kSlots, CombineForm::kNodeSums}) {
        ExpectEverythingArrives(DispatchPlanner(backend, form, cluster, group, top_k), cluster, routes);
      }
    }
  }
}

// Nodes of unequal size: a source without a counterpart on a node must not always go through the same rank there.
TEST(DispatchPlan, RelaysOfSourcesWithoutACounterpartAreSharedOut) {
  Cluster cluster = Cluster::EqualNodes(2, 2).value();
  cluster.ranks_per_node = {8, 3};
  ExpertGroup group;
  for (int r = 0; r < 11; ++r) group.ranks.push_back(r);
  for (int e = 0; e < 11; ++e) group.ep_of.push_back(e);
  const DispatchPlanner planner(All2AllBackend::kHierarchical, CombineForm::kSlots, cluster, group, 1);
  std::vector<int> relayed(11, 0);
  for (int source = 0; source < 8; ++source) ++relayed[planner.Relay(source, 1)];
  EXPECT_EQ(relayed, (std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 2}));
  for (int source = 8; source < 11; ++source) EXPECT_EQ(planner.Relay(source, 0), source - 8) << "its counterpart";
}

// Payload between nodes of a plan, in rows: dispatch, combine.
std::pair<double, double> BetweenNodes(const Ledger& ledger) {
  const auto bytes = [&](CommOp op) {
    const auto found = ledger.find({Axis::kEp, op, LinkClass::kEthernet});
    return found == ledger.end() ? 0.0 : static_cast<double>(found->second.bytes);
  };
  return {bytes(CommOp::kDispatch), bytes(CommOp::kCombine)};
}

// Different experts of a row, each set as likely as another.
Routes UniformRoutes(int members, int64_t rows, int experts, int top_k) {
  Routes routes(members);
  uint32_t draw = 0;
  std::vector<int32_t> all(experts);
  for (auto& of : routes) {
    for (int64_t r = 0; r < rows; ++r) {
      std::iota(all.begin(), all.end(), 0);
      for (int s = 0; s < top_k; ++s) {
        const double u = RandomUniform({.seed = 9, .position = draw++, .purpose = RandomPurpose::kTest});
        std::swap(all[s], all[s + static_cast<int>(u * (experts - s))]);
        of.push_back(all[s]);
      }
    }
  }
  return routes;
}

TEST(DispatchPlan, UniformRoutesMeetTheExpectationsOfTheSeeds) {
  // One stage of the third document: 16 ranks on 2 of the nodes, 32 experts, 2 of them a token: 0.758 copies cross for
  // each token, whose other node is reached with 1 - (16·15)/(32·31).
  constexpr int64_t kRows = 2000;
  const std::vector<int64_t> rows(16, kRows);
  const Routes routes = UniformRoutes(16, kRows, 32, 2);
  const RowBytes one{.dispatch = 1, .combine = 1};
  for (const auto backend : {All2AllBackend::kFlat, All2AllBackend::kHierarchical}) {
    for (const auto form : {CombineForm::kSlots, CombineForm::kNodeSums}) {
      const DispatchPlanner planner = PlannerOf(backend, 0, form);
      const Ledger expected = planner.ExpectedTraffic(rows, one);
      const Ledger counted = planner.TrafficOf(PlanOf(planner, routes), one);
      ASSERT_EQ(expected.size(), counted.size());
      for (const auto& [key, entry] : counted) {
        EXPECT_EQ(entry.count, expected.at(key).count);
        EXPECT_NEAR(static_cast<double>(entry.bytes), static_cast<double>(expected.at(key).bytes), 0.02 * entry.bytes);
      }
    }
  }
  const double tokens = 16.0 * kRows;
  const auto crossings = [&](CombineForm form) {
    return BetweenNodes(PlannerOf(All2AllBackend::kHierarchical, 0, form).ExpectedTraffic(rows, one));
  };
  const double dedup = formulas::ExpectedRemoteCopies(32, 2, 2, formulas::Copies::kPerNode);
  EXPECT_NEAR(dedup, 0.758065, 1e-6);
  EXPECT_NEAR(crossings(CombineForm::kSlots).first / tokens, dedup, 1e-4);
  EXPECT_NEAR(crossings(CombineForm::kNodeSums).second / tokens, dedup, 1e-4);
  EXPECT_NEAR(crossings(CombineForm::kSlots).second / tokens, formulas::ExpectedRemoteCopies(32, 2, 2, formulas::Copies::kPerSlot),
              1e-4);
  // Without relays a node is reached once for each of its ranks that has an expert: more than 0.758, at most 1.
  const double flat = BetweenNodes(PlannerOf(All2AllBackend::kFlat, 0).ExpectedTraffic(rows, one)).first / tokens;
  EXPECT_GT(flat, dedup + 0.2);
}

}  // namespace
}  // namespace sixfold
