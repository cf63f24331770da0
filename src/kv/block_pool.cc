#include "kv/block_pool.h"

#include "base/check.h"

namespace sixfold {

BlockPool::BlockPool(int32_t units_of_owner, int owners)
    : units_of_owner_(units_of_owner), free_(owners), taken_(static_cast<size_t>(units_of_owner) * owners, false) {
  SF_CHECK_GE(units_of_owner, 0);
  SF_CHECK_GE(owners, 1);
  for (int o = 0; o < owners; ++o) {
    free_[o].reserve(units_of_owner);
    for (int32_t u = units_of_owner - 1; u >= 0; --u) free_[o].push_back(BlockId(o * units_of_owner + u));
  }
}

int32_t BlockPool::free() const {
  size_t free = 0;
  for (const std::vector<BlockId>& of_owner : free_) free += of_owner.size();
  return static_cast<int32_t>(free);
}

std::optional<BlockId> BlockPool::Take(int owner) {
  std::vector<BlockId>& free = free_[owner];
  if (free.empty()) return std::nullopt;
  const BlockId unit = free.back();
  free.pop_back();
  SF_CHECK(!taken_[unit.value()]);
  taken_[unit.value()] = true;
  return unit;
}

void BlockPool::TakeFor(const KvPlacement& placement, const KvDemand& demand, std::span<const int64_t> micro_batches,
                        std::vector<int32_t>* units) {
  std::vector<int64_t> free;
  for (const std::vector<BlockId>& of_owner : free_) free.push_back(static_cast<int64_t>(of_owner.size()));
  for (const int owner : DealUnits(placement, demand, micro_batches, free)) {
    const std::optional<BlockId> unit = Take(owner);
    SF_CHECK(unit.has_value());
    units->push_back(unit->value());
  }
}

void BlockPool::Give(BlockId unit) {
  SF_CHECK_GE(unit.value(), 0);
  SF_CHECK_LT(unit.value(), total());
  SF_CHECK(taken_[unit.value()]);
  taken_[unit.value()] = false;
  free_[unit.value() / units_of_owner_].push_back(unit);
}

}  // namespace sixfold
