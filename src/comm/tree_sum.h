// The local half of a reduction: adds partial sums in the order of a tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/reduce_type.h"
#include "mesh/tree_cut.h"

namespace sixfold {

// Remembers the additions of the cuts it has seen and keeps its scratch, so that Add allocates
// nothing once warm. Thread rule: one thread. Rounding and flushing are those of the thread.
class TreeSum {
 public:
  // out = sum of cut.total_nodes() partials of `count` elements, slots[i] being the i-th in the
  // order of AddsOf. Slots are only read. out may be one of the slots, else overlaps none.
  void Add(ReduceType type, const TreeCut& cut, std::span<const std::byte* const> slots,
           int64_t count, std::byte* out);

 private:
  struct Plan {
    int leaves = 0;
    std::vector<std::vector<TreeNode>> nodes;
    std::vector<TreeAdd> adds;
  };
  const std::vector<TreeAdd>& AddsFor(const TreeCut& cut);

  std::vector<Plan> plans_;  // at most kPlans; the oldest gives way
  size_t next_plan_ = 0;
  std::vector<const std::byte*> at_;  // [nodes] where each slot's block is
  std::vector<std::byte> block_;      // one block of every slot
};

}  // namespace sixfold
