// Which tokens the messages of context attention carry, said to a recorder (trace/recorder.h). Each Add… belongs to the last
// CarryPieces; `to` is a member of the operation's group.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "mesh/context.h"
#include "trace/recorder.h"

namespace sixfold {

// Key and value of one position on a rank, in one layer.
inline int64_t KvRowBytes(const KvLayerView& kv) {
  return int64_t{kv.kv_heads} * (kv.k_dim + (kv.v_in_k ? 0 : kv.v_dim)) * (kv.bf16 ? 2 : 4);
}

// row_bytes for each row of the runs; AddPrefillRuns: of sequences with more than one row.
void AddRuns(trace::Recorder& recorder, std::span<const RowRun> runs, int64_t row_bytes, int to);
void AddPrefillRuns(trace::Recorder& recorder, std::span<const ContextSequence> sequences, std::span<const RowRun> runs,
                    int64_t row_bytes, int to);

// Whose pages they are.
struct PageOwner {
  const ContextRule& rule;
  std::span<const ContextSequence> sequences;
  int member = 0;
};
// Pages of the owner's block. Slots without a key travel too: the page's keys share them.
void AddPages(trace::Recorder& recorder, const PageOwner& owner, const ContextBlock& block, int64_t page_bytes, int to);

// Queries of this member to the members that have keys for them, and what members send back: part_bytes a node.
void CarryQueries(trace::Recorder& recorder, std::span<const ContextQuery> queries, int me, int members, int64_t query_bytes);
void CarryPartials(trace::Recorder& recorder, std::span<const ContextQuery> queries, int me, int members, int64_t part_bytes);

}  // namespace sixfold
