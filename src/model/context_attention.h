// Attention over keys and values that rest on the members of a context group: keys go to queries in prefill, queries go to keys
// in decode. What moves is mesh/context.h's affair; the arithmetic is that of one rank, since every partial result is a node of
// the same tree (docs/decisions/0012-context-parallelism.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/ops.h"
#include "mesh/context.h"
#include "mesh/layout.h"
#include "model/partial_results.h"
#include "model/rank_comm.h"
#include "trace/recorder.h"

namespace sixfold {

// Use: Begin for each micro-batch; then, layer by layer, WriteKeys and Attend, the same on every member. Memory is kept between
// calls and only grows. Errors: the communicators'. Thread rule: the rank's step thread.
class ContextAttention {
 public:
  // The shard and ops outlive it.
  ContextAttention(const Layout& layout, const RankShard& own, Ops& ops);
  // Says what every message carries; null: to nobody.
  void Trace(trace::Recorder* recorder) { trace_ = recorder; }

  // sequences: of the micro-batch; tables: [sequences] blocks of this rank by page (16 positions) of the sequence, those that
  // rest elsewhere are not looked at; by_token by page of the rank's own keys.
  void Begin(const RankComm& comm, std::vector<ContextSequence> sequences, std::vector<std::vector<int32_t>> tables);

  // k [own rows, kv_heads, k_dim], v likewise (null where the value lies in the key): into the pages of their owners.
  Status WriteKeys(const float* k, const float* v, const KvLayerView& kv);
  // As Ops::Attention over this rank's own rows; args.sequences is not used.
  Status Attend(const AttentionArgs& args);

  // The most that keys and values of others (and copies of the own that are under way) have taken at once, since start.
  int64_t transit_bytes_max() const { return transit_bytes_max_; }

 private:
  // Consecutive queries, whose partial results wait for their siblings.
  struct QueryRun {
    int32_t sequence = 0;
    int64_t first_row = 0;  // in the query matrix
    int64_t position = 0, rows = 0, stride = 1;
    ChunkRange visible;
    std::vector<PartialResults::Node> waiting;
  };
  struct WindowPlan {
    int64_t window = 0;
    ContextPlan plan;
    std::vector<std::vector<std::vector<std::vector<int32_t>>>> tables;  // [segments][members][sequences][pages]: place in the block
  };
  // One layer's call, for all heads of the rank or for a part of them.
  struct Call {
    AttentionArgs args;
    const WindowPlan* plan = nullptr;
    size_t segment = 0;
    Share kv_heads;  // of the rank's own
  };
  // Heads against positions, among `parts` members from `first` on.
  struct Transposition {
    int parts = 1, mine = 0, first = 0;
    std::vector<int64_t> own_rows = {};  // numbers of this rank's rows that take part
    std::vector<int64_t> counts = {};    // [parts] such rows of each
  };

  const WindowPlan& PlanFor(int64_t window);
  Status SendKeysHome(const float* k, const float* v, const KvLayerView& kv);
  int Member() const { return own_.cp; }
  int64_t PageBytes(const Call& call, int64_t* k_bytes) const;
  void AppendRuns(const WindowPlan& plan, int member, std::optional<int64_t> first_row, std::vector<QueryRun>* out) const;
  void AppendByToken(const WindowPlan& plan, QueryRun run, std::vector<QueryRun>* out) const;

  const ContextSegment& SegmentOf(const Call& call) const { return call.plan->plan.segments[call.segment]; }
  Status Gather(const Call& call);
  Status Ring(const Call& call, std::vector<std::byte>* block);
  // context_exchange.cc
  Call HeadPart(const Call& whole, int part) const;
  Transposition TranspositionOf(const WindowPlan& plan) const;
  Status SendQueries(const Call& whole, const Transposition& t);
  Status SendPages(const Call& whole, const Transposition& t);
  Status ReturnOutputs(const Call& whole, const Transposition& t);
  Status Transpose(const Call& whole);
  void AttendQueries(const AttentionArgs& args, const WindowPlan& plan);
  void MergeQueries(const AttentionArgs& args, const WindowPlan& plan, std::span<const std::span<float>> arrived);
  Status PassQueries(const AttentionArgs& args, const WindowPlan& plan);

  void Pack(const Call& call, Share kv_heads, std::byte* out) const;
  // For the recorder: the block of `member` goes to `to`; keys of the run rest here.
  void CarryBlock(int member, const ContextBlock& block, int64_t page_bytes, int to);
  void RestKeys(const RowRun& run, const KvLayerView& kv);
  // The block of `member` at `data`, or of several members one after the other.
  void AttendBlocks(const Call& call, int first_member, int members, const std::byte* data);
  void AttendBlock(const Call& call, int member, const std::byte* data);
  void RunNodes(const AttentionArgs& args, std::span<const AttentionNode> nodes, std::span<const int> runs,
                std::span<const PartialResults::Node> results);
  void Finish(const Call& call);
  void NoteTransit(int64_t bytes);

  const RankShard& own_;
  Ops& ops_;
  const ContextRule rule_;
  RankComm comm_;
  trace::Recorder* trace_ = nullptr;

  // Of the micro-batch.
  std::vector<ContextSequence> sequences_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<RowRun> own_runs_;
  std::vector<std::vector<std::vector<RowRun>>> moves_;  // KeysToMove
  std::vector<int32_t> own_row_;                    // [rows of the micro-batch]: number among this rank's rows, or -1
  std::vector<std::unique_ptr<WindowPlan>> plans_;  // one a window

  std::vector<QueryRun> runs_;
  PartialResults results_;
  std::vector<std::byte> block_, next_;             // of the ring: what is attended to, what comes in
  std::vector<std::vector<std::byte>> packed_;      // [U] pages by heads
  std::vector<std::byte> keys_out_, keys_in_;       // striped: rows whose keys move
  std::vector<float> keys_, values_;                // that came home
  std::vector<float> queries_, outputs_, outgoing_, arrived_;
  int64_t transit_bytes_max_ = 0;
};

}  // namespace sixfold
