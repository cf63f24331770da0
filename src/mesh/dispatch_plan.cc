#include "mesh/dispatch_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "mesh/axes.h"
#include "mesh/expert_formulas.h"

namespace sixfold {

std::string_view NameOf(All2AllBackend backend) { return backend == All2AllBackend::kFlat ? "flat" : "hierarchical"; }

DispatchPlanner::DispatchPlanner(All2AllBackend backend, CombineForm form, const Cluster& cluster, ExpertGroup group, int top_k)
    : group_(std::move(group)), form_(form), top_k_(top_k) {
  const int members = group_.members();
  SF_CHECK_GT(members, 0);
  SF_CHECK_EQ(members % group_.etp, 0);
  std::map<int, int> numbers;
  for (const int rank : group_.ranks) {
    const int node = cluster.NodeOf(rank);
    int first = rank;
    while (first > 0 && cluster.NodeOf(first - 1) == node) --first;
    const int number = numbers.try_emplace(node, static_cast<int>(numbers.size())).first->second;
    node_.push_back(number);
    place_.push_back(rank - first);
    on_node_.resize(numbers.size());
    on_node_[number].push_back(static_cast<int>(node_.size()) - 1);
  }
  inside_ = cluster.inside.link;
  between_ = cluster.between.link;
  legs_ = backend == All2AllBackend::kHierarchical && on_node_.size() > 1 ? 2 : 1;
}

int DispatchPlanner::Relay(int source, int node) const {
  const std::vector<int>& there = on_node_[node];
  const int place = place_[source];
  const auto at = std::lower_bound(there.begin(), there.end(), place, [&](int m, int wanted) { return place_[m] < wanted; });
  return at != there.end() && place_[*at] == place ? *at : there[place % there.size()];
}

void DispatchPlanner::PlanRow(int source, int row, std::span<const int32_t> experts, RowScratch* scratch,
                              DispatchPlan* plan) const {
  // The few members that have its experts, ascending, each once.
  std::vector<int32_t>&eps = scratch->eps, &first = scratch->first;
  eps.clear();
  first.clear();
  for (const int32_t e : experts) {
    SF_CHECK_LT(static_cast<size_t>(e), group_.ep_of.size());
    eps.push_back(group_.ep_of[e]);
  }
  std::sort(eps.begin(), eps.end());
  eps.erase(std::unique(eps.begin(), eps.end()), eps.end());
  const size_t second_begin = plan->out[1].size();
  for (const int32_t ep : eps) {
    for (int t = 0; t < group_.etp; ++t) {
      const int member = ep * group_.etp + t;
      if (Direct(source, member)) {
        if (member != source) first.push_back(member);
        continue;
      }
      const int relay = Relay(source, node_[member]);
      first.push_back(relay);
      if (relay != member) plan->out[1].push_back({source, row, relay, member});
    }
  }
  std::sort(first.begin(), first.end());
  first.erase(std::unique(first.begin(), first.end()), first.end());
  for (const int to : first) plan->out[0].push_back({source, row, source, to});
  std::sort(plan->out[1].begin() + static_cast<int64_t>(second_begin), plan->out[1].end(),
            [](const RowCopy& a, const RowCopy& b) { return a.to < b.to; });
}

void DispatchPlanner::PlanWork(std::span<const std::span<const int32_t>> routes, DispatchPlan* plan) const {
  std::vector<int64_t> begin(group_.ep_of.size() + 1, 0);  // counting sort by expert
  for (const auto& of : routes) {
    for (const int32_t e : of) ++begin[e + 1];
  }
  for (size_t e = 0; e + 1 < begin.size(); ++e) begin[e + 1] += begin[e];
  std::vector<ExpertSlot> sorted(begin.back());
  std::vector<int64_t> next = begin;
  for (size_t source = 0; source < routes.size(); ++source) {
    for (size_t slot = 0; slot < routes[source].size(); ++slot) {
      const int32_t e = routes[source][slot];
      sorted[next[e]++] = {e, static_cast<int32_t>(source), static_cast<int32_t>(slot)};
    }
  }
  plan->work.assign(group_.ep(), {});
  for (size_t e = 0; e < group_.ep_of.size(); ++e) {
    std::vector<ExpertSlot>& work = plan->work[group_.ep_of[e]];
    work.insert(work.end(), sorted.begin() + begin[e], sorted.begin() + begin[e + 1]);
  }
}

void DispatchPlanner::PlanReturn(DispatchPlan* plan) const {
  std::vector<OutputCopy> relayed;  // second leg, ep by ep
  for (int ep = 0; ep < group_.ep(); ++ep) {
    const std::vector<ExpertSlot>& work = plan->work[ep];
    for (int t = 0; t < group_.etp; ++t) {
      const int from = ep * group_.etp + t;
      const Share share = ShareOf(static_cast<int64_t>(work.size()), group_.etp, t);
      for (int64_t i = share.begin; i < share.end; ++i) {
        const ExpertSlot& w = work[i];
        if (Direct(w.source, from)) {
          if (from != w.source) plan->back[0].push_back({w.source, w.slot, from, w.source});
          continue;
        }
        const int relay = Relay(w.source, node_[from]);
        if (relay != from) plan->back[0].push_back({w.source, w.slot, from, relay});
        relayed.push_back({w.source, form_ == CombineForm::kSlots ? w.slot : w.slot / top_k_, relay, w.source});
      }
    }
  }
  if (form_ == CombineForm::kSlots) {
    plan->back[1] = std::move(relayed);
    return;
  }
  // One sum a row and node.
  const auto key = [](const OutputCopy& c) { return std::tie(c.from, c.source, c.index); };
  std::sort(relayed.begin(), relayed.end(), [&](const OutputCopy& a, const OutputCopy& b) { return key(a) < key(b); });
  relayed.erase(std::unique(relayed.begin(), relayed.end()), relayed.end());
  plan->back[1] = std::move(relayed);
}

DispatchPlan DispatchPlanner::Plan(std::span<const std::span<const int32_t>> routes) const {
  SF_CHECK_EQ(static_cast<int>(routes.size()), group_.members());
  DispatchPlan plan;
  RowScratch scratch;
  for (int source = 0; source < group_.members(); ++source) {
    const std::span<const int32_t> experts = routes[source];
    SF_CHECK_EQ(experts.size() % top_k_, 0u);
    for (size_t row = 0; row < experts.size() / top_k_; ++row) {
      PlanRow(source, static_cast<int>(row), experts.subspan(row * top_k_, top_k_), &scratch, &plan);
    }
  }
  PlanWork(routes, &plan);
  PlanReturn(&plan);
  return plan;
}

// The operations of every call, without bytes.
Ledger DispatchPlanner::Operations() const {
  Ledger ledger;
  const bool stays = std::any_of(on_node_.begin(), on_node_.end(), [](const auto& members) { return members.size() > 1; });
  for (const CommOp op : {CommOp::kDispatch, CommOp::kCombine}) {
    if (stays) ledger[{Axis::kEp, op, inside_}].count = legs_;
    if (on_node_.size() > 1) ledger[{Axis::kEp, op, between_}].count = legs_;
  }
  return ledger;
}

Ledger DispatchPlanner::TrafficOf(const DispatchPlan& plan, const RowBytes& bytes) const {
  Ledger ledger = Operations();
  for (int leg = 0; leg < legs_; ++leg) {
    for (const RowCopy& c : plan.out[leg]) ledger[{Axis::kEp, CommOp::kDispatch, LinkOf(c.from, c.to)}].bytes += bytes.dispatch;
    for (const OutputCopy& c : plan.back[leg]) ledger[{Axis::kEp, CommOp::kCombine, LinkOf(c.from, c.to)}].bytes += bytes.combine;
  }
  return ledger;
}

Ledger DispatchPlanner::ExpectedTraffic(std::span<const int64_t> rows_of_members, const RowBytes& bytes) const {
  const auto experts = static_cast<int64_t>(group_.ep_of.size());
  std::vector<int64_t> held(group_.ep(), 0), held_by_node(on_node_.size(), 0);
  for (const int32_t ep : group_.ep_of) ++held[ep];
  std::vector<std::vector<bool>> counted(on_node_.size(), std::vector<bool>(group_.ep(), false));
  for (int m = 0; m < group_.members(); ++m) {
    const int ep = m / group_.etp;
    if (!counted[node_[m]][ep]) held_by_node[node_[m]] += held[ep];
    counted[node_[m]][ep] = true;
  }
  const auto hit = [&](int64_t of) { return 1 - formulas::MissProbability(experts, of, top_k_); };
  std::map<LedgerKey, double> sum;
  const auto add = [&](CommOp op, int from, int to, double copies, int64_t each) {
    if (from != to) sum[{Axis::kEp, op, LinkOf(from, to)}] += copies * static_cast<double>(each);
  };
  for (int source = 0; source < group_.members(); ++source) {
    const auto rows = static_cast<double>(rows_of_members[source]);
    for (int m = 0; m < group_.members(); ++m) {
      const int64_t own = held[m / group_.etp];
      const double slots = rows * top_k_ * static_cast<double>(own) / static_cast<double>(experts) / group_.etp;
      if (Direct(source, m)) {
        add(CommOp::kDispatch, source, m, rows * hit(own), bytes.dispatch);
        add(CommOp::kCombine, m, source, slots, bytes.combine);
        continue;
      }
      const int relay = Relay(source, node_[m]);
      add(CommOp::kDispatch, relay, m, rows * hit(own), bytes.dispatch);
      add(CommOp::kCombine, m, relay, slots, bytes.combine);
      if (form_ == CombineForm::kSlots) add(CommOp::kCombine, relay, source, slots, bytes.combine);
    }
    for (int node = 0; legs_ == 2 && node < static_cast<int>(on_node_.size()); ++node) {
      if (node == node_[source]) continue;
      const int relay = Relay(source, node);
      add(CommOp::kDispatch, source, relay, rows * hit(held_by_node[node]), bytes.dispatch);
      if (form_ == CombineForm::kNodeSums) {
        add(CommOp::kCombine, relay, source, rows * hit(held_by_node[node]), bytes.combine);
      }
    }
  }
  Ledger ledger = Operations();
  for (const auto& [key, value] : sum) ledger[key].bytes = std::llround(value);
  return ledger;
}

}  // namespace sixfold
