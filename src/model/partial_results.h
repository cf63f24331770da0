// Partial results of attention on their way together: nodes of the chunk tree come in any order and merge with their siblings.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "mesh/context.h"

namespace sixfold {

// Buffers are numbers, so that nothing is copied. Memory is kept and only grows. Thread rule: the rank's step thread.
class PartialResults {
 public:
  // Ops outlives it. any_order: results have no tree and merge as they come (keys that rest token by token).
  enum class Merging : uint8_t { kTree, kAnyOrder };
  PartialResults(Ops& ops, Merging merging) : ops_(ops), merging_(merging) {}

  // The result of one node for some rows.
  struct Node {
    ChunkRange range;
    int buffer = 0;
  };

  // A buffer of at least so many floats, until Give or Insert takes it.
  int New(int64_t floats);
  void Give(int buffer) { free_.push_back(buffer); }
  float* Data(int buffer) { return buffers_[buffer].data(); }

  // Adds a node to those that wait, merged with its siblings as far as they have come. Its rows see the chunks of `visible`: when
  // all have come, one node waits.
  void Insert(ChunkRange visible, Node node, int64_t lanes, int v_dim, std::vector<Node>* waiting);

 private:
  Ops& ops_;
  const Merging merging_;
  std::vector<std::vector<float>> buffers_;
  std::vector<int> free_;
};

}  // namespace sixfold
