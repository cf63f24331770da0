#include "kernels/attention.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/scratch.h"
#include "kernels/ops_table.h"

namespace sixfold {
namespace {

// Fewer lanes than this in a sequence: one row a piece, whose keys take the lanes of the vectors instead.
constexpr int64_t kMinTiledLanes = 12;
// Below this many multiply-adds the calling thread is done before the others are awake.
constexpr int64_t kInlineWork = 100'000;
// A node that a thread computes alone covers at least this many keys.
constexpr int64_t kMinNodeKeys = 512;
constexpr size_t kAlignFloats = 16;

int64_t ChunkOf(const AttentionArgs& args, int64_t position) { return position / args.chunk; }

int64_t WorkOf(const AttentionPiece& piece) {
  const KvLayerView& kv = piece.args->kv;
  return (piece.lane_end - piece.lane_begin) * (piece.chunk_end - piece.chunk_begin) * piece.args->chunk *
         (kv.k_dim + kv.v_dim);
}

int KvGroup(const AttentionArgs& args) { return args.kv_group > 0 ? args.kv_group : args.heads / args.kv.kv_heads; }

void CheckArgs(const AttentionArgs& args) {
  SF_CHECK(std::has_single_bit(static_cast<unsigned>(args.chunk)));
  SF_CHECK_GE(args.chunk, kPageTokens);
  SF_CHECK_LE(args.chunk, kMaxChunk);
  SF_CHECK_GE(args.kv.kv_heads, 1);
  const int group = KvGroup(args);
  SF_CHECK_GE(group, 1);
  SF_CHECK_LT(args.group_offset, group);
  SF_CHECK_EQ((args.heads + args.group_offset + group - 1) / group, args.kv.kv_heads);
  SF_CHECK_GE(args.window, 0);
  if (args.kv.v_in_k) SF_CHECK_LE(args.kv.v_dim, args.kv.k_dim);
}

// Calls emit with the pieces of a sequence, each over all chunks that its lanes see.
template <typename Emit>
void PlanSequence(const AttentionArgs& args, const AttentionSequence& sequence, const Emit& emit) {
  for (int head = 0; head < args.kv.kv_heads; ++head) {
    const int first_head = std::max(0, head * KvGroup(args) - args.group_offset);
    const int group = std::min(args.heads, (head + 1) * KvGroup(args) - args.group_offset) - first_head;
    const int64_t lanes = sequence.rows * group;
    const int64_t step = lanes >= kMinTiledLanes ? kMaxPieceLanes : group;
    // The last rows see most keys: they go first, so that threads end together.
    for (int64_t begin = (lanes - 1) / step * step; lanes > 0 && begin >= 0; begin -= step) {
      AttentionPiece piece{.args = &args,
                           .sequence = &sequence,
                           .kv_head = head,
                           .first_head = first_head,
                           .group = group,
                           .lane_begin = begin,
                           .lane_end = std::min(lanes, begin + step)};
      piece.chunk_begin = ChunkOf(args, VisibleTo(piece, begin).first);
      piece.chunk_end = ChunkOf(args, VisibleTo(piece, piece.lane_end - 1).last) + 1;
      emit(piece);
    }
  }
}

// The chunks of a node that no row of it could see may be missing at its ends, none else.
void CheckNode(const AttentionArgs& args, const AttentionNode& node) {
  SF_CHECK_GE(node.chunk_begin, 0);
  SF_CHECK_LT(node.chunk_begin, node.chunk_end);
  const int level = std::bit_width(static_cast<uint64_t>(node.chunk_begin ^ (node.chunk_end - 1)));
  const int64_t first = node.chunk_begin >> level << level;
  const int64_t first_seen = ChunkOf(args, VisibleAt(args, node.rows.first_position).first);
  const int64_t last_seen = ChunkOf(args, node.rows.PositionOf(node.rows.rows - 1));
  SF_CHECK(node.chunk_begin == first || node.chunk_begin <= first_seen);
  SF_CHECK(node.chunk_end == first + (int64_t{1} << level) || node.chunk_end > last_seen);
}

}  // namespace

AttentionRunner::AttentionRunner(const OpsTable& table, ThreadPool& pool) : table_(table), pool_(pool) {
  scratch_.resize(pool.size());
}

void AttentionRunner::Run(const AttentionArgs& args) {
  CheckArgs(args);
  pieces_.clear();
  for (const AttentionSequence& sequence : args.sequences)
    PlanSequence(args, sequence, [&](const AttentionPiece& piece) { pieces_.push_back(piece); });
  RunPieces(args);
}

void AttentionRunner::RunNodes(const AttentionArgs& args, std::span<const AttentionNode> nodes) {
  CheckArgs(args);
  const int64_t stride = PartialStride(args.kv.v_dim);
  pieces_.clear();
  for (const AttentionNode& node : nodes) {
    if (node.rows.rows == 0) continue;
    CheckNode(args, node);
    PlanSequence(args, node.rows, [&](AttentionPiece piece) {
      piece.partial = node.partials + (node.rows.rows * piece.first_head + piece.lane_begin) * stride;
      piece.chunk_begin = std::max(piece.chunk_begin, node.chunk_begin);
      piece.chunk_end = std::min(piece.chunk_end, node.chunk_end);
      if (piece.chunk_begin < piece.chunk_end)
        pieces_.push_back(piece);
      else  // l = 0: no lane of it sees a key here
        std::fill_n(piece.partial, (piece.lane_end - piece.lane_begin) * stride, 0.0f);
    });
  }
  RunPieces(args);
}

void AttentionRunner::RunPieces(const AttentionArgs& args) {
  if (pieces_.empty()) return;
  int64_t total = 0, last_chunk = 0;
  for (const AttentionPiece& piece : pieces_) {
    total += WorkOf(piece);
    last_chunk = std::max(last_chunk, piece.chunk_end - 1);
  }
  tree_levels_ = std::bit_width(static_cast<uint64_t>(last_chunk)) + 1;
  SF_CHECK_LE(tree_levels_, kMaxTreeLevels);
  for (AttentionPiece& piece : pieces_) piece.tree_levels = tree_levels_;
  const bool threaded = pool_.size() > 1 && total >= kInlineWork;
  cuts_.clear();
  if (threaded) CutAlongKeys(args);
  GrowScratch(args);
  const std::vector<AttentionPiece>& work = cuts_.empty() ? pieces_ : nodes_;
  const auto count = static_cast<int64_t>(work.size());
  const auto attend = [&](int64_t begin, int64_t end, int member) {
    for (int64_t i = begin; i < end; ++i) table_.attend(work[i], ScratchOf(member));
  };
  if (threaded)
    pool_.ParallelInOrder(count, attend);
  else
    attend(0, count, 0);
  for (const Cut& cut : cuts_) table_.merge(cut.whole, cut.partials, ScratchOf(0));
}

void AttentionRunner::Finish(const AttentionArgs& args, const AttentionSequence& rows, const float* partials) {
  CheckArgs(args);
  const int64_t stride = PartialStride(args.kv.v_dim);
  tree_levels_ = 1;
  GrowScratch(args);
  pieces_.clear();
  PlanSequence(args, rows, [&](AttentionPiece piece) {
    piece.tree_levels = tree_levels_;
    pieces_.push_back(piece);
  });
  const auto finish = [&](int64_t begin, int64_t end, int member) {
    for (const AttentionPiece& piece : std::span(pieces_).subspan(begin, end - begin)) {
      const float* from = partials + (rows.rows * piece.first_head + piece.lane_begin) * stride;
      table_.merge(piece, {.data = from, .first_node = 0, .nodes = 1}, ScratchOf(member));
    }
  };
  const auto count = static_cast<int64_t>(pieces_.size());
  if (PartialLanes(rows.rows, args.heads) * stride < kInlineWork)
    finish(0, count, 0);
  else
    pool_.ParallelFor(count, pool_.GrainFor(count, 1), finish);
}

// Few pieces with many keys (one long decode): each is cut into nodes of one level of the tree.
void AttentionRunner::CutAlongKeys(const AttentionArgs& args) {
  const int64_t wanted = 4 * pool_.size();
  const auto count = static_cast<int64_t>(pieces_.size());
  if (count >= wanted) return;
  const int64_t nodes_each = (wanted + count - 1) / count;
  const auto level_of = [&](const AttentionPiece& piece) {
    int level = 0;
    while (((piece.chunk_end - piece.chunk_begin) >> level) > nodes_each ||
           (int64_t{args.chunk} << level) < kMinNodeKeys)
      ++level;
    return level;
  };
  const auto partial_floats = [&](const AttentionPiece& piece) {
    return (piece.lane_end - piece.lane_begin) * PartialStride(args.kv.v_dim);
  };
  nodes_.clear();
  size_t floats = 0;
  for (const AttentionPiece& piece : pieces_) {
    const int level = level_of(piece);
    const int64_t first = piece.chunk_begin >> level;
    const int64_t nodes = ((piece.chunk_end - 1) >> level) - first + 1;
    if (nodes == 1) {
      nodes_.push_back(piece);
      continue;
    }
    cuts_.push_back(
        {.whole = piece, .offset = floats, .partials = {.first_node = first, .nodes = nodes}, .level = level});
    floats += nodes * partial_floats(piece);
  }
  GrowTo(partials_, static_cast<int64_t>(floats));
  for (Cut& cut : cuts_) {
    float* partial = partials_.data() + cut.offset;
    cut.partials.data = partial;
    for (int64_t i = 0; i < cut.partials.nodes; ++i, partial += partial_floats(cut.whole)) {
      const int64_t begin = (cut.partials.first_node + i) << cut.level;
      AttentionPiece& node = nodes_.emplace_back(cut.whole);
      node.chunk_begin = std::max(node.chunk_begin, begin);
      node.chunk_end = std::min(node.chunk_end, begin + (int64_t{1} << cut.level));
      node.partial = partial;
    }
  }
}

void AttentionRunner::GrowScratch(const AttentionArgs& args) {
  const int64_t floats =
      kAlignFloats +
      table_.attention_scratch(
          {.chunk = args.chunk, .k_dim = args.kv.k_dim, .v_dim = args.kv.v_dim, .tree_levels = tree_levels_});
  for (std::vector<float>& scratch : scratch_) GrowTo(scratch, floats);
}

float* AttentionRunner::ScratchOf(int member) {
  const auto address = reinterpret_cast<uintptr_t>(scratch_[member].data());
  return reinterpret_cast<float*>((address + 63) & ~uintptr_t{63});
}

}  // namespace sixfold
