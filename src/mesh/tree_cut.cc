#include "mesh/tree_cut.h"

#include "base/check.h"

namespace sixfold {

namespace {

// Adds of node(level, index), which covers leaves [index << level, …); returns the slot of its sum.
// `slot` maps the first leaf of a given node to its number, -1 elsewhere; `end` to where that node
// ends.
struct Adder {
  const TreeCut& cut;
  std::vector<int> slot, end;
  std::vector<TreeAdd> adds;

  int Visit(int level, int index) {
    const int begin = index << level;
    const int stop = std::min((index + 1) << level, cut.leaves);
    if (slot[begin] >= 0 && end[begin] == stop) return slot[begin];
    SF_CHECK_GT(level, 0);
    const int left = Visit(level - 1, 2 * index);
    if ((2 * index + 1) << (level - 1) >= cut.leaves) return left;
    const int right = Visit(level - 1, 2 * index + 1);
    adds.push_back({left, right});
    return left;
  }
};

}  // namespace

std::vector<TreeNode> MaximalNodes(int leaves, Share share) {
  std::vector<TreeNode> nodes;
  int at = static_cast<int>(share.begin);
  const int end = static_cast<int>(share.end);
  while (at < end) {
    int level = 0;
    // A node ends at its power of two, or where the leaves end.
    const auto node_end = [&](int l) { return std::min(at + (1 << l), leaves); };
    while (at % (1 << (level + 1)) == 0 && node_end(level + 1) <= end && node_end(level) < leaves)
      ++level;
    nodes.push_back({at, node_end(level)});
    at = node_end(level);
  }
  return nodes;
}

TreeCut CutTree(int leaves, int members) {
  TreeCut cut{.leaves = leaves};
  for (int m = 0; m < members; ++m) {
    cut.shares.push_back(ShareOf(leaves, members, m));
    cut.nodes.push_back(MaximalNodes(leaves, cut.shares.back()));
  }
  return cut;
}

int TreeCut::total_nodes() const {
  size_t total = 0;
  for (const std::vector<TreeNode>& of_member : nodes) total += of_member.size();
  return static_cast<int>(total);
}

std::vector<TreeAdd> AddsOf(const TreeCut& cut) {
  Adder adder{cut, std::vector<int>(cut.leaves, -1), std::vector<int>(cut.leaves, 0), {}};
  int number = 0;
  for (const std::vector<TreeNode>& of_member : cut.nodes) {
    for (const TreeNode& node : of_member) {
      adder.slot[node.begin] = number++;
      adder.end[node.begin] = node.end;
    }
  }
  int level = 0;
  while ((1 << level) < cut.leaves) ++level;
  const int root = adder.Visit(level, 0);
  SF_CHECK_EQ(root, 0);
  return adder.adds;
}

}  // namespace sixfold
