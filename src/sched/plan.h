// Which rows the next step computes: one pure function from a value to a value. The engine, the text tests and later
// the simulator call the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/sequence.h"

namespace sixfold {

// All living sequences in order of arrival (an index into `sequences` names one in the plan). Waiting ones beyond
// SchedLimits::max_num_seqs may be left out: no plan could admit them.
struct SchedSnapshot {
  std::vector<SequenceProgress> sequences;
  int64_t blocks_free = 0;
};

struct SchedLimits {
  int64_t max_num_batched_tokens = 512;  // rows of one step
  int64_t max_num_seqs = 64;             // sequences that hold blocks
  int64_t max_chunk_tokens = 0;          // rows of one sequence in one step; 0: only the bounds above
};

struct PlannedRows {
  int32_t sequence = 0;    // index into the snapshot
  int64_t rows = 0;        // next positions to compute, >= 1
  int64_t new_blocks = 0;  // to take from the pool first
  bool operator==(const PlannedRows&) const = default;
};

// Carried out in this order: preempt, admit, then take blocks and compute.
struct StepPlan {
  std::vector<int32_t> preempt;   // give up their blocks; latest arrival first
  std::vector<int32_t> admit;     // waiting sequences that start in this step; oldest first
  std::vector<PlannedRows> rows;  // decodes, then prefill chunks; each oldest first
  bool operator==(const StepPlan&) const = default;

  bool empty() const { return rows.empty(); }
};

// The policy:
//  1. A running sequence that misses one row (a decode) comes first, then running ones that miss more (prefill chunks,
//     cut to the budgets and to the blocks there are), then waiting ones. Within each group the oldest comes first.
//  2. A running sequence that cannot compute one row for want of a block takes it from the latest arrival that runs,
//     if that one is younger than itself: it is preempted and recomputes later. If none is younger it keeps its blocks
//     and sits the step out. So the oldest sequence always gets its block, and always ends.
//  3. A waiting sequence is admitted, in order of arrival and none past another, when the blocks of its next chunk are
//     free beside one for each running sequence (without that reserve the newcomer would be the next to be preempted),
//     and not in a step in which a running one went short. With nothing running, its chunk alone must fit.
// Requires of the caller: any one sequence fits into all blocks alone. Then every sequence ends after finitely many
// steps (plan_test.cc plays random loads to the end).
StepPlan PlanStep(const SchedSnapshot& snapshot, const SchedLimits& limits);

}  // namespace sixfold
