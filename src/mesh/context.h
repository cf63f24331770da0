// Context parallelism: which member of a context group (the ranks of one tp, dp and pp coordinate) computes which rows, where
// keys and values rest, and what the attention of one layer moves between members. Pure functions; engine, byte prediction,
// balance and tracer all ask here. Ring Attention: arXiv:2310.01889; zigzag: Llama 3, arXiv:2407.21783 §3.3.2; striped:
// arXiv:2311.09431; Ulysses: arXiv:2309.14509; USP: arXiv:2405.07719; pass-Q: arXiv:2411.01783.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/numerics.h"

namespace sixfold {

// How keys and values meet queries in prefill, by Megatron's names. kRing: blocks of K/V go round; kAllGather: everybody gets
// all; kUlysses: everybody gets all positions of some heads; kUlyssesRing: Ulysses among neighbours, a ring over the rest;
// kStriped: a ring whose rows are dealt one by one.
enum class CpForm : uint8_t { kRing, kAllGather, kUlysses, kUlyssesRing, kStriped };
std::string_view NameOf(CpForm form);  // "p2p", "all_gather", "a2a", "a2a+p2p", "striped"
std::optional<CpForm> CpFormFromName(std::string_view name);

struct ContextOptions {
  CpForm form = CpForm::kRing;
  // Positions after which new tokens' K/V go to the next member; 0: the attention chunk. Other than a multiple of the chunk
  // only in kFast, and then a divisor of 16: all K/V rest in such stripes, position p on member (p / interleave) mod cp.
  int64_t interleave = 0;
  int ulysses = 0;  // U of kUlyssesRing; 0: chosen
};

// ContextOptions with everything decided. Members of a group are numbered by cp coordinate; member u + ulysses * r is number u
// of those that transpose heads with each other, and number r of a ring.
struct ContextRule {
  int size = 1;  // cp
  CpForm form = CpForm::kRing;
  int64_t chunk = 256;       // keys of a leaf of the softmax tree
  int64_t interleave = 256;
  bool by_token = false;     // K/V rest in stripes of `interleave` positions instead of whole chunks
  int ulysses = 1;

  int ring() const { return size / ulysses; }
};

// Positions of one request in a micro-batch: rows at [first_position, first_position + rows), whose K/V and all earlier ones
// rest where `owners` says.
struct ContextSequence {
  int64_t first_position = 0, rows = 0;
  std::vector<int32_t> owners;  // [chunks that hold positions below first_position + rows]; not looked at when by_token
};

// Rows of one sequence that one member computes: row + i * stride of the micro-batch, at position + i * stride.
struct RowRun {
  int32_t sequence = 0;
  int64_t row = 0, position = 0, rows = 0, stride = 1;
  bool operator==(const RowRun&) const = default;
};
// [members]; ascending by row at the start of runs. A sequence with one row (decode) is computed where its key rests.
std::vector<std::vector<RowRun>> DealRows(const ContextRule& rule, std::span<const ContextSequence> sequences);
int64_t RowsOf(std::span<const RowRun> runs);
// The member on which position p's key and value rest.
int OwnerOf(const ContextRule& rule, const ContextSequence& sequence, int64_t position);
// by_token: keys of positions below `end` on a member, which lie there without gaps.
int64_t KeysBelow(const ContextRule& rule, int member, int64_t end);

// Keys of a member that a query at `position` sees, counted among the member's own: [first, last). by_token.
struct LocalKeys {
  int64_t first = 0, last = 0;
  int64_t window() const { return first > 0 ? last - first : 0; }  // 0: all up to the last
};
LocalKeys KeysSeen(const ContextRule& rule, int member, int64_t position, int64_t window);

// Chunks [begin, end) of a sequence, or none.
struct ChunkRange {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  bool operator==(const ChunkRange&) const = default;
};
// [chunks of the sequence]: those that rest on a member; not by_token.
std::vector<bool> HeldBy(const ContextSequence& sequence, int member);
// Chunks of which some row at a position in [first, last] sees a key. window 0: all keys up to its own.
ChunkRange VisibleChunks(int64_t chunk, int64_t first, int64_t last, int64_t window);
// The fewest nodes of the chunk tree, ascending, that cover the visible chunks which `held` has. Chunks that are not visible do
// not exist for the tree: nodes are clipped to `visible`.
std::vector<ChunkRange> MaximalNodes(ChunkRange visible, const std::vector<bool>& held);  // held: [chunks of the sequence]
// The node that merges with `node` (as MaximalNodes gives them) next; empty when node is all that is visible.
ChunkRange SiblingOf(ChunkRange visible, ChunkRange node);

// Pages (16 consecutive positions) of a sequence that rest on a member: page numbers [first, first + pages). by_token: of the
// member's own keys without gaps.
struct PageRun {
  int32_t sequence = 0;
  int64_t first = 0, pages = 0;
  bool operator==(const PageRun&) const = default;
};
struct ContextBlock {
  std::vector<PageRun> runs;  // by sequence, then page
  int64_t pages = 0;
};

// A row that goes to the keys (decode).
struct ContextQuery {
  int32_t sequence = 0;
  int home = 0;              // member
  int64_t row = 0, position = 0;
  ChunkRange visible;
  std::vector<std::vector<ChunkRange>> nodes;  // [members]; by_token: at most one a member, {0, 1}
};

// Keys go to queries segment by segment: so many chunks of each sequence, counted from its first. What is under way and what waits
// for siblings is bounded so, however long a context.
inline constexpr int64_t kSegmentChunks = 64;
struct ContextSegment {
  ChunkRange chunks;                 // by_token: all
  std::vector<ContextBlock> blocks;  // [members]
};

// One layer's attention in one micro-batch.
struct ContextPlan {
  std::vector<std::vector<RowRun>> rows;  // [members]: DealRows
  // K/V at rest of sequences with more than one row that some row of this micro-batch sees. At least one, maybe without pages.
  std::vector<ContextSegment> segments;
  std::vector<ContextQuery> queries;      // of sequences with one row
  bool prefills = false;                  // there are sequences with more than one row
};
ContextPlan PlanContext(const ContextRule& rule, std::span<const ContextSequence> sequences, int64_t window);

// striped, whole chunks at rest: rows [from][to] whose K/V a member computes and another keeps. Runs are maximal.
std::vector<std::vector<std::vector<RowRun>>> KeysToMove(const ContextRule& rule, std::span<const ContextSequence> sequences);

// (query, key) pairs that the rows of each member attend to, [members].
std::vector<int64_t> AttendedPairs(std::span<const std::vector<RowRun>> rows, int64_t window);

}  // namespace sixfold
