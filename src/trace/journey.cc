#include "trace/journey.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace sixfold::trace {

namespace {

using OperationKey = std::tuple<int64_t, int32_t, int32_t, Phase>;  // in the order of the program

OperationKey KeyOf(const Place& at) { return {at.step, at.micro_batch, at.layer, at.phase}; }

void AddOnce(std::vector<std::vector<int32_t>>* groups, std::vector<int32_t> group) {
  if (std::find(groups->begin(), groups->end(), group) == groups->end()) groups->push_back(std::move(group));
}

// Hops that start where others arrive come after them; an exchange in both directions has no order and keeps that of ranks.
void SortHops(std::vector<Hop>* hops) {
  std::sort(hops->begin(), hops->end(), [](const Hop& a, const Hop& b) { return std::tie(a.from, a.to) < std::tie(b.from, b.to); });
  const size_t count = hops->size();
  std::vector<size_t> level(count, 0);
  bool changed = true;
  for (size_t round = 0; changed && round <= count; ++round) {
    changed = false;
    for (size_t a = 0; a < count; ++a) {
      for (size_t b = 0; b < count; ++b) {
        if ((*hops)[a].to != (*hops)[b].from || level[b] > level[a]) continue;
        level[b] = level[a] + 1;
        changed = true;
      }
    }
  }
  if (changed) return;  // a circle
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return level[a] < level[b]; });
  std::vector<Hop> sorted;
  for (const size_t i : order) sorted.push_back(std::move((*hops)[i]));
  *hops = std::move(sorted);
}

}  // namespace

int64_t Operation::bytes() const {
  int64_t sum = 0;
  for (const Hop& hop : hops) sum += hop.bytes;
  return sum;
}

Run::Run(std::vector<RankTrace> ranks) : ranks_(std::move(ranks)) {
  for (const RankTrace& rank : ranks_) {
    for (const RowList& list : rank.rows) lists_[{rank.rank, list.step, list.micro_batch}] = &list;
  }
}

const RowList* Run::ListOf(int32_t rank, const Place& at) const {
  const auto found = lists_.find({rank, at.step, at.micro_batch});
  return found == lists_.end() ? nullptr : found->second;
}

Token Run::TokenOf(const RowRef& ref, const Place& at) const {
  const RowList* list = ListOf(ref.rank, at);
  SF_CHECK(list != nullptr);  // a rank names rows of ranks that have them
  if (ref.by == RowRef::By::kPosition) return {list->replica, ref.sequence, ref.number};
  const int64_t row = ref.number + (ref.by == RowRef::By::kShare ? list->share_begin : 0);
  SF_CHECK_LT(row, static_cast<int64_t>(list->rows.size()));
  return {list->replica, list->rows[row].sequence, list->rows[row].position};
}

bool Run::Is(const RowRef& ref, const Place& at, const Token& token) const { return TokenOf(ref, at) == token; }

std::vector<int64_t> Run::BytesByPosition(int32_t replica, int32_t sequence, int64_t positions) const {
  std::vector<int64_t> bytes(positions, 0);
  for (const RankTrace& rank : ranks_) {
    for (const Message& m : rank.messages) {
      for (int64_t i = m.first_load; i < m.first_load + m.loads; ++i) {
        const Token token = TokenOf(rank.loads[i].row, m.at);
        if (token.replica == replica && token.sequence == sequence && token.position < positions)
          bytes[token.position] += rank.loads[i].bytes;
      }
    }
  }
  return bytes;
}

std::vector<int32_t> Run::GroupOf(const RankTrace& rank, int32_t id) const {
  for (const GroupMembers& group : rank.groups) {
    if (group.id == id) return group.ranks;
  }
  return {};
}

std::map<TotalKey, Total> Run::Totals() const {
  std::map<TotalKey, Total> totals;
  for (const RankTrace& rank : ranks_) {
    for (const Message& m : rank.messages) {
      Total& total = totals[{m.axis, m.op, m.link}];
      total.bytes += m.bytes;
      for (int64_t i = m.first_load; i < m.first_load + m.loads; ++i) total.carried += rank.loads[i].bytes;
    }
  }
  return totals;
}

int64_t Run::metadata_bytes() const {
  int64_t sum = 0;
  for (const RankTrace& rank : ranks_) sum += rank.metadata_bytes;
  return sum;
}

std::string Run::FirstUnsaid(const Names& names) const {
  for (const RankTrace& rank : ranks_) {
    for (const Message& m : rank.messages) {
      int64_t carried = 0;
      for (int64_t i = m.first_load; i < m.first_load + m.loads; ++i) carried += rank.loads[i].bytes;
      if (carried != m.bytes) {
        return std::string(NameOf(m.at.phase)) + ": " + names.axes.at(m.axis) + " " + names.ops.at(m.op) + " of layer " +
               std::to_string(m.at.layer + 1) + " from rank " + std::to_string(m.from) + " to " + std::to_string(m.to) + ": " +
               std::to_string(carried) + " of " + std::to_string(m.bytes) + " bytes";
      }
    }
  }
  return "";
}

int64_t Run::BytesOf(const RankTrace& rank, const Message& message, const Token& token) const {
  int64_t bytes = 0;
  for (int64_t i = message.first_load; i < message.first_load + message.loads; ++i) {
    if (Is(rank.loads[i].row, message.at, token)) bytes += rank.loads[i].bytes;
  }
  return bytes;
}

std::vector<Operation> Run::OperationsOf(const Map& map, const Token& token) const {
  std::map<OperationKey, Operation> found;
  for (const RankTrace& rank : ranks_) {
    for (const Message& m : rank.messages) {
      const int64_t bytes = BytesOf(rank, m, token);
      if (bytes == 0) continue;
      Operation& operation = found.try_emplace(KeyOf(m.at), Operation{.at = m.at, .axis = m.axis, .op = m.op}).first->second;
      AddOnce(&operation.groups, GroupOf(rank, m.group));
      const auto same = std::find_if(operation.hops.begin(), operation.hops.end(),
                                     [&](const Hop& hop) { return hop.from == m.from && hop.to == m.to; });
      if (same != operation.hops.end()) {
        same->bytes += bytes;
        same->begin_ns = std::min(same->begin_ns, m.begin_ns);
        same->end_ns = std::max(same->end_ns, m.end_ns);
        continue;
      }
      operation.hops.push_back({.from = m.from,
                                .to = m.to,
                                .axis = m.axis,
                                .op = m.op,
                                .link = m.link,
                                .group = GroupOf(rank, m.group),
                                .crosses = map.node_of[m.from] != map.node_of[m.to],
                                .bytes = bytes,
                                .begin_ns = m.begin_ns,
                                .end_ns = m.end_ns});
    }
    for (const Attendance& a : rank.attendance) {
      const RowList* list = ListOf(rank.rank, a.at);
      SF_CHECK(list != nullptr);
      if (list->replica != token.replica) continue;
      for (int32_t row = 0; row < a.rows; ++row) {
        if (!Is({.rank = rank.rank, .number = row, .by = RowRef::By::kShare}, a.at, token)) continue;
        Operation& operation = found.try_emplace(KeyOf(a.at), Operation{.at = a.at, .axis = a.axis, .op = a.op}).first->second;
        AddOnce(&operation.groups, GroupOf(rank, a.group));
        const bool stays = std::find(a.stays.begin(), a.stays.end(), row) != a.stays.end();
        const bool known = std::find(operation.stays.begin(), operation.stays.end(), rank.rank) != operation.stays.end();
        if (stays && !known) operation.stays.push_back(rank.rank);
      }
    }
  }
  std::vector<Operation> operations;
  for (auto& [key, operation] : found) operations.push_back(std::move(operation));
  return operations;
}

void Run::FindHomes(Journey* journey) const {
  const Token& token = journey->token;
  std::map<std::pair<int64_t, int64_t>, std::set<int32_t>> homes;
  for (const RankTrace& rank : ranks_) {
    for (const RowList& list : rank.rows) {
      if (list.replica != token.replica) continue;
      for (int64_t r = list.own_begin; r < list.own_end; ++r) {
        if (list.rows[r].sequence == token.sequence && list.rows[r].position == token.position)
          homes[{list.first_layer, list.end_layer}].insert(rank.rank);
      }
    }
  }
  for (const auto& [layers, ranks] : homes) {
    journey->homes.push_back({layers.first, layers.second, std::vector<int32_t>(ranks.begin(), ranks.end())});
  }
}

// Layers that follow each other on a rank are one place.
void Run::FindKv(Journey* journey) const {
  for (const RankTrace& rank : ranks_) {
    std::map<int32_t, KvPlace> by_layer;
    for (const KvRest& kv : rank.kv) {
      const Place at{.step = kv.step, .micro_batch = kv.micro_batch, .layer = kv.layer};
      for (const RowRef& row : kv.rows) {
        if (!Is(row, at, journey->token)) continue;
        by_layer[kv.layer] = {rank.rank, kv.layer, kv.layer + 1, kv.head_begin, kv.head_end, kv.bytes_a_row};
      }
    }
    for (const auto& [layer, place] : by_layer) {
      std::vector<KvPlace>& all = journey->kv;
      const bool goes_on = !all.empty() && all.back().rank == place.rank && all.back().end_layer == layer &&
                           all.back().head_begin == place.head_begin && all.back().head_end == place.head_end;
      if (goes_on) {
        ++all.back().end_layer;
        all.back().bytes += place.bytes;
      } else {
        all.push_back(place);
      }
    }
  }
}

Journey Run::Follow(const Map& map, const Token& token) const {
  Journey journey{.token = token};
  FindHomes(&journey);
  FindKv(&journey);
  journey.operations = OperationsOf(map, token);
  std::set<int32_t> ranks;
  if (!journey.homes.empty()) ranks.insert(journey.homes.front().ranks.begin(), journey.homes.front().ranks.end());
  for (Operation& operation : journey.operations) {
    SortHops(&operation.hops);
    std::set<int32_t> new_ranks;
    for (const Hop& hop : operation.hops) {
      for (const int32_t rank : {hop.from, hop.to}) {
        if (ranks.insert(rank).second) new_ranks.insert(rank);
      }
      journey.crossings += hop.crosses ? 1 : 0;
      journey.bytes += hop.bytes;
    }
    operation.new_ranks.assign(new_ranks.begin(), new_ranks.end());
    operation.number = &operation - journey.operations.data() + 1;
    operation.ranks = static_cast<int64_t>(ranks.size());
    operation.crossings = journey.crossings;
  }
  journey.ranks.assign(ranks.begin(), ranks.end());
  return journey;
}

}  // namespace sixfold::trace
