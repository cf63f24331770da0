#include "kv/placement.h"

#include <algorithm>

#include "base/check.h"

namespace sixfold {

namespace {

// The owner with most free units; the lowest of equals.
int Roomiest(std::span<const int64_t> free) {
  return static_cast<int>(std::max_element(free.begin(), free.end()) - free.begin());
}

int TakeFrom(int wanted, std::span<int64_t> free) {
  const int owner = free[wanted] > 0 ? wanted : Roomiest(free);
  SF_CHECK_GE(free[owner], 1);
  --free[owner];
  return owner;
}

// Owners of `count` chunks whose rows come in one micro-batch.
void DealZigzag(int64_t count, int owners, std::span<int64_t> free, std::vector<int>* out) {
  std::vector<int64_t> sizes(2 * owners, count / (2 * owners));  // of the runs
  std::vector<int64_t> left(free.begin(), free.end());
  for (int64_t i = 0; i < 2 * owners; ++i) {
    const int64_t owner = std::min(i, 2 * owners - 1 - i);
    left[owner] -= sizes[i];
  }
  for (int64_t extra = count % (2 * owners); extra > 0; --extra) {
    // The roomiest owner whose two runs have not both grown; its early run first.
    int best = -1;
    for (int o = 0; o < owners; ++o) {
      const int64_t grown = sizes[o] + sizes[2 * owners - 1 - o] - 2 * (count / (2 * owners));
      if (grown < 2 && (best < 0 || left[o] > left[best])) best = o;
    }
    const int run = sizes[best] == count / (2 * owners) ? best : 2 * owners - 1 - best;
    ++sizes[run];
    --left[best];
  }
  for (int run = 0; run < 2 * owners; ++run) {
    for (int64_t i = 0; i < sizes[run]; ++i) out->push_back(TakeFrom(std::min(run, 2 * owners - 1 - run), free));
  }
}

}  // namespace

std::vector<int> DealUnits(const KvPlacement& placement, const KvDemand& demand, std::span<const int64_t> micro_batches,
                           std::span<int64_t> free) {
  const int64_t end = placement.UnitsFor(demand.first_position + demand.rows);
  std::vector<int> owners;
  if (placement.owners == 1 || placement.by_token) {
    for (int64_t unit = demand.units; unit < end; ++unit) owners.push_back(TakeFrom(0, free));
    return owners;
  }
  if (demand.rows == 1) {
    for (int64_t unit = demand.units; unit < end; ++unit) {
      owners.push_back(TakeFrom(static_cast<int>(unit * placement.chunk / placement.interleave % placement.owners), free));
    }
    return owners;
  }
  for (int64_t unit = demand.units; unit < end;) {
    // The chunks that begin in the same micro-batch.
    const auto row_of = [&](int64_t u) {
      return demand.batch_row + std::max<int64_t>(0, u * placement.chunk - demand.first_position);
    };
    const auto bound = std::upper_bound(micro_batches.begin(), micro_batches.end(), row_of(unit));
    int64_t stop = unit + 1;
    while (stop < end && (bound == micro_batches.end() || row_of(stop) < *bound)) ++stop;
    DealZigzag(stop - unit, placement.owners, free, &owners);
    unit = stop;
  }
  return owners;
}

std::vector<int32_t> BlockTable(const KvPlacement& placement, std::span<const int32_t> units, int64_t tokens, int64_t blocks) {
  std::vector<int32_t> table;
  const int64_t each = placement.unit_blocks();
  if (placement.owners == 1 || placement.by_token) {
    const int64_t wanted = placement.UnitsFor(tokens);
    SF_CHECK_LE(wanted, static_cast<int64_t>(units.size()));
    table.assign(units.begin(), units.begin() + wanted);
    return table;
  }
  const int64_t units_of_owner = blocks / each;
  for (int64_t block = 0; block < BlocksFor(tokens); ++block) {
    SF_CHECK_LT(block / each, static_cast<int64_t>(units.size()));
    const int32_t unit = units[block / each];
    const int64_t owner = unit / units_of_owner, local = unit % units_of_owner;
    table.push_back(static_cast<int32_t>(owner * blocks + local * each + block % each));
  }
  return table;
}

}  // namespace sixfold
