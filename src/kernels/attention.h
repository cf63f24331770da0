// How attention is cut into pieces that any thread may compute, and the chunk tree as a binary counter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace sixfold {

struct OpsTable;

inline constexpr int kMaxChunk = 512;      // keys
inline constexpr int kMaxTreeLevels = 30;  // positions < 2^31, chunks of at least 16 keys
inline constexpr int kMaxPieceLanes = 32;

// What the size of scratch depends on.
struct AttentionShape {
  int chunk = 0;
  int k_dim = 0;
  int v_dim = 0;
  int tree_levels = 0;
};

// A lane is one query: lane = row * group + g is query head first_head + g of the sequence's row `row`.
// A piece is up to kMaxPieceLanes consecutive lanes over the chunks [chunk_begin, chunk_end), which is one node of the
// tree, without those at its ends that no lane sees, or everything that is visible. Some lane sees each of them.
struct AttentionPiece {
  const AttentionArgs* args = nullptr;
  const AttentionSequence* sequence = nullptr;
  int kv_head = 0;
  int first_head = 0;  // the query heads that read kv_head: [first_head, first_head + group)
  int group = 1;
  int tree_levels = 0;
  int64_t lane_begin = 0, lane_end = 0;
  int64_t chunk_begin = 0, chunk_end = 0;
  float* partial = nullptr;  // null: meet the sink, divide and store to out; else [lane][PartialStride]: O[v_dim], m, l. l = 0: no key
};

// The sink of a lane's head; only when there are sinks.
inline float SinkOf(const AttentionPiece& piece, int64_t lane) {
  return piece.args->sinks[piece.first_head + lane % piece.group];
}

// Consecutive nodes of one level of the tree, of the same lanes.
struct AttentionPartials {
  const float* data = nullptr;  // [nodes][lanes][PartialStride]
  int64_t first_node = 0;       // index of the first in its level
  int64_t nodes = 0;
};

// Keys [first, last] that the query at `position` sees.
struct VisibleKeys {
  int64_t first = 0, last = 0;
};
inline VisibleKeys VisibleAt(const AttentionArgs& args, int64_t position) {
  return {args.window > 0 && position >= args.window ? position - args.window + 1 : 0, position};
}

inline VisibleKeys VisibleTo(const AttentionPiece& piece, int64_t lane) {
  return VisibleAt(*piece.args, piece.sequence->PositionOf(lane / piece.group));
}

// Address of the vector of one key or value. base and stride: kv.k and kv.k_dim, or kv.v and kv.v_stride().
inline const std::byte* KvAddress(const AttentionPiece& piece, const std::byte* base, int stride, int64_t position) {
  const KvLayerView& kv = piece.args->kv;
  const int64_t page = piece.sequence->pages[position / kPageTokens];
  const int64_t row = (page * kv.kv_heads + piece.kv_head) * kPageTokens + position % kPageTokens;
  return base + row * stride * (kv.bf16 ? 2 : 4);
}

// The tree of numerics.h over nodes that come in ascending order: slot[j] holds a finished left child of level j + 1.
// Buffers are referred to by index, so that nothing is copied. merge(left, right) leaves the parent in `right`.
class ChunkTree {
 public:
  // Uses buffers 0..levels; current() is where the caller puts the next leaf.
  explicit ChunkTree(int levels) : current_(levels) {
    for (int i = 0; i < levels; ++i) slot_[i] = i;
  }
  int current() const { return current_; }

  template <typename Merge>
  void Push(int64_t index, const Merge& merge) {
    int level = 0;
    for (; (index >> level) & 1; ++level) {
      if (!(occupied_ >> level & 1)) continue;  // the left sibling has no visible key: copy the right one
      merge(slot_[level], current_);
      occupied_ &= ~(uint32_t{1} << level);
    }
    std::swap(slot_[level], current_);
    occupied_ |= uint32_t{1} << level;
  }

  // The root: absent right children copy the left one. Returns its buffer, or -1 if nothing was pushed.
  template <typename Merge>
  int Root(const Merge& merge) {
    int root = -1;
    for (int level = 0; occupied_ >> level; ++level) {
      if (!(occupied_ >> level & 1)) continue;
      if (root >= 0)
        merge(slot_[level], root);
      else
        root = slot_[level];
    }
    occupied_ = 0;
    return root;
  }

 private:
  int slot_[kMaxTreeLevels];
  int current_;
  uint32_t occupied_ = 0;
};

// Cuts a call into pieces, spreads them over the pool, merges what was cut along the keys. Memory is kept between
// calls and only grows. Thread rule: one step thread.
class AttentionRunner {
 public:
  AttentionRunner(const OpsTable& table, ThreadPool& pool);
  void Run(const AttentionArgs& args);
  void RunNodes(const AttentionArgs& args, std::span<const AttentionNode> nodes);
  void Finish(const AttentionArgs& args, const AttentionSequence& rows, const float* partials);

 private:
  // A piece whose keys are shared out as whole nodes of the tree.
  struct Cut {
    AttentionPiece whole;
    size_t offset = 0;  // of its partials in partials_, floats
    AttentionPartials partials;
    int level = 0;  // of its nodes
  };

  void RunPieces(const AttentionArgs& args);
  void CutAlongKeys(const AttentionArgs& args);
  void GrowScratch(const AttentionArgs& args);
  float* ScratchOf(int member);

  const OpsTable& table_;
  ThreadPool& pool_;
  std::vector<AttentionPiece> pieces_;
  std::vector<AttentionPiece> nodes_;  // pieces_ after cutting, when there is something to cut
  std::vector<Cut> cuts_;
  std::vector<float> partials_;
  std::vector<std::vector<float>> scratch_;  // one a member
  int tree_levels_ = 0;
};

}  // namespace sixfold
