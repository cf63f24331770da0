// A reduction tree (kernels/numerics.h) whose leaves are dealt to the members of a group: which
// partial sums each member sends, and in which order whoever receives them adds. A function of
// leaves and group size alone, so that every layout adds the same numbers in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/axes.h"

namespace sixfold {

// A node of the tree: leaves [begin, end), where begin is a multiple of 2^level.
struct TreeNode {
  int begin = 0, end = 0;
  bool operator==(const TreeNode&) const = default;
};

struct TreeCut {
  int leaves = 0;
  std::vector<Share>
      shares;  // [members] leaves of each member, contiguous and ascending; may be empty
  std::vector<std::vector<TreeNode>>
      nodes;  // [members] the maximal nodes inside its share, ascending

  int members() const { return static_cast<int>(shares.size()); }
  int total_nodes() const;
};
// Leaves dealt by ShareOf.
TreeCut CutTree(int leaves, int members);
// The maximal nodes inside a contiguous share of the leaves.
std::vector<TreeNode> MaximalNodes(int leaves, Share share);

// How to add the nodes of a cut, numbered in order of members, then of nodes: slot `into` = slot
// `into` + slot `from`, one after the other; the sum ends in slot 0.
struct TreeAdd {
  int into = 0, from = 0;
  bool operator==(const TreeAdd&) const = default;
};
std::vector<TreeAdd> AddsOf(const TreeCut& cut);

}  // namespace sixfold
