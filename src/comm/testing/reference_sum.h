// Partial sums and their total by plain recursion over a tree, element for element, on one thread:
// what the reductions are compared with, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/reduce_type.h"
#include "mesh/tree_cut.h"

namespace sixfold {

// The numbers of one reduction; every rank can work out every other's. fp32, fp64 and whole
// partials are themselves sums over leaves, so that the total cannot depend on the cut; bf16 ones
// are drawn a node.
struct ReferenceSum {
  ReduceType type = ReduceType::kF32;
  TreeCut cut;
  int64_t elements = 0;
  uint64_t seed = 0;

  // [nodes of the member][elements]
  std::vector<std::byte> NodesOf(int member) const;
  std::vector<std::byte> Total() const;  // [elements]
};

}  // namespace sixfold
