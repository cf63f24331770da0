// Which units of K/V memory are free. Accounting only: no memory, no tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kv/placement.h"

namespace sixfold {

// Units are numbered owner by owner: unit u is of owner u / (units of an owner). Thread rule: one owner (the engine's step
// thread).
class BlockPool {
 public:
  explicit BlockPool(int32_t units) : BlockPool(units, 1) {}
  BlockPool(int32_t units_of_owner, int owners);

  int32_t total() const { return units_of_owner_ * static_cast<int32_t>(free_.size()); }
  int32_t free() const;
  int32_t used() const { return total() - free(); }

  // The lowest-numbered kept-back unit of an owner first; nullopt when it has none (a normal outcome).
  std::optional<BlockId> Take(int owner = 0);
  // What a sequence lacks for these rows (DealUnits). All must be free: the caller has counted.
  void TakeFor(const KvPlacement& placement, const KvDemand& demand, std::span<const int64_t> micro_batches,
               std::vector<int32_t>* units);
  // Giving back a unit that is not taken is a bug.
  void Give(BlockId unit);

 private:
  int32_t units_of_owner_ = 0;
  std::vector<std::vector<BlockId>> free_;  // [owners] stacks
  std::vector<bool> taken_;
};

}  // namespace sixfold
