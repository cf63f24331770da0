// Which rows the next step computes on every data-parallel replica: one pure function from a value to a value. The
// engine, the text tests and later the simulator call the same one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sched/sequence.h"

namespace sixfold {

// All living sequences of all replicas in order of arrival (an index into `sequences` names one in the plan). Waiting
// ones beyond SchedLimits::max_num_seqs for each replica may be left out: no plan could admit them.
struct GlobalSnapshot {
  std::vector<SequenceProgress> sequences;
  std::vector<int64_t> blocks_free;  // [replicas]
};

// Each of them is of one replica.
struct SchedLimits {
  int64_t max_num_batched_tokens = 512;  // rows of one step
  int64_t max_num_seqs = 64;             // sequences that hold blocks
  int64_t max_chunk_tokens = 0;          // rows of one sequence in one step; 0: only the bounds above
  int64_t block_tokens = kPageTokens;    // positions of what is allocated at once
};

struct PlannedRows {
  int32_t sequence = 0;    // index into the snapshot
  int64_t rows = 0;        // next positions to compute, >= 1
  int64_t new_blocks = 0;  // to take from the pool first
  bool operator==(const PlannedRows&) const = default;
};

// Of one replica. Carried out in this order: preempt, admit, then take blocks and compute.
struct StepPlan {
  std::vector<int32_t> preempt;   // give up their blocks; latest arrival first
  std::vector<int32_t> admit;     // waiting sequences that start in this step; oldest first
  std::vector<PlannedRows> rows;  // decodes, then prefill chunks; each oldest first
  bool operator==(const StepPlan&) const = default;

  bool empty() const { return rows.empty(); }
};

// What all replicas do in one step. A replica without rows takes part in the pass with an empty batch.
struct GlobalPlan {
  std::vector<StepPlan> replicas;
  bool operator==(const GlobalPlan&) const = default;

  bool empty() const {
    return std::all_of(replicas.begin(), replicas.end(), [](const StepPlan& plan) { return plan.empty(); });
  }
};

// The policy, on each replica:
//  1. A running sequence that misses one row (a decode) comes first, then running ones that miss more (prefill chunks,
//     cut to the budgets and to the blocks there are), then waiting ones. Within each group the oldest comes first.
//  2. A running sequence that cannot compute one row for want of a block takes it from the latest arrival that runs,
//     if that one is younger than itself: it is preempted and recomputes later. If none is younger it keeps its blocks
//     and sits the step out. So the oldest sequence always gets its block, and always ends.
//  3. There is room for a waiting sequence when the blocks of its next chunk are free beside one for each running
//     sequence (without that reserve the newcomer would be the next to be preempted), and not in a step in which a
//     running one went short. With nothing running, its chunk alone must fit.
// And over them:
//  4. One queue. Waiting sequences are admitted in order of arrival, none past another, each to the replica that
//     PlaceSequence chooses of those with room; when none has room, nobody behind it is admitted either.
//  5. A sequence belongs to a replica only while it runs. A preempted one has no K/V left that would tie it, so it
//     takes its place in the queue and is placed anew; in the step that preempts, nobody is admitted anywhere, so that
//     nobody overtakes it.
// Requires of the caller: any one sequence fits into all blocks of one replica. Then every sequence ends after finitely
// many steps (plan_test.cc plays random loads to the end).
GlobalPlan PlanStep(const GlobalSnapshot& snapshot, const SchedLimits& limits);

}  // namespace sixfold
