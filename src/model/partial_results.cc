#include "model/partial_results.h"

#include <algorithm>
#include <utility>

namespace sixfold {

int PartialResults::New(int64_t floats) {
  const auto size = [&](int buffer) { return static_cast<int64_t>(buffers_[buffer].size()); };
  // The smallest that is large enough, or the largest to grow: small ones stay small.
  const auto better = [&](int a, int b) {
    const bool a_fits = size(a) >= floats, b_fits = size(b) >= floats;
    return a_fits != b_fits ? a_fits : a_fits ? size(a) < size(b) : size(a) > size(b);
  };
  auto best = std::min_element(free_.begin(), free_.end(), better);
  if (best == free_.end()) {
    best = free_.insert(free_.end(), static_cast<int>(buffers_.size()));
    buffers_.emplace_back();
  }
  const int buffer = *best;
  free_.erase(best);
  if (size(buffer) < floats) buffers_[buffer].resize(floats);
  return buffer;
}

void PartialResults::Insert(ChunkRange visible, Node node, int64_t lanes, int v_dim, std::vector<Node>* waiting) {
  while (true) {
    auto sibling = waiting->begin();
    if (merging_ == Merging::kTree) {
      const ChunkRange range = SiblingOf(visible, node.range);
      sibling = range.empty() ? waiting->end()
                              : std::find_if(waiting->begin(), waiting->end(), [&](const Node& n) { return n.range == range; });
    }
    if (sibling == waiting->end()) break;
    Node left = *sibling, right = node;
    waiting->erase(sibling);
    if (right.range.begin < left.range.begin) std::swap(left, right);
    ops_.MergePartials(Data(left.buffer), Data(right.buffer), lanes, v_dim);
    Give(right.buffer);
    node = {{left.range.begin, right.range.end}, left.buffer};
  }
  waiting->push_back(node);
}

}  // namespace sixfold
