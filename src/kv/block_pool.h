// Which blocks are free. Accounting only: no memory, no tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"

namespace sixfold {

// Thread rule: one owner (the engine's step thread).
class BlockPool {
 public:
  explicit BlockPool(int32_t blocks);

  int32_t total() const { return total_; }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t used() const { return total_ - free(); }

  // The lowest-numbered kept-back block first; nullopt when none is free (a normal outcome).
  std::optional<BlockId> Take();
  // Giving back a block that is not taken is a bug.
  void Give(BlockId block);

 private:
  int32_t total_ = 0;
  std::vector<BlockId> free_;   // a stack
  std::vector<bool> taken_;
};

}  // namespace sixfold
