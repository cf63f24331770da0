#include "kv/block_pool.h"

#include "base/check.h"

namespace sixfold {

BlockPool::BlockPool(int32_t blocks) : total_(blocks), taken_(blocks, false) {
  SF_CHECK_GE(blocks, 0);
  free_.reserve(blocks);
  for (int32_t b = blocks - 1; b >= 0; --b) free_.push_back(BlockId(b));
}

std::optional<BlockId> BlockPool::Take() {
  if (free_.empty()) return std::nullopt;
  const BlockId block = free_.back();
  free_.pop_back();
  SF_CHECK(!taken_[block.value()]);
  taken_[block.value()] = true;
  return block;
}

void BlockPool::Give(BlockId block) {
  SF_CHECK_GE(block.value(), 0);
  SF_CHECK_LT(block.value(), total_);
  SF_CHECK(taken_[block.value()]);
  taken_[block.value()] = false;
  free_.push_back(block);
}

}  // namespace sixfold
