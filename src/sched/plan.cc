#include "sched/plan.h"

#include <algorithm>

#include "base/check.h"
#include "kv/geometry.h"

namespace sixfold {
namespace {

// A plan in the making: what each sequence was given so far, and what is left.
class Planner {
 public:
  Planner(const SchedSnapshot& snapshot, const SchedLimits& limits)
      : sequences_(snapshot.sequences),
        limits_(limits),
        given_(snapshot.sequences.size()),
        blocks_free_(snapshot.blocks_free),
        rows_left_(limits.max_num_batched_tokens) {
    SF_CHECK_GE(snapshot.blocks_free, 0);
    for (const SequenceProgress& s : sequences_) running_ += s.state == SequenceState::kRunning;
  }

  StepPlan Plan() {
    for (int32_t i = 0; i < count(); ++i)
      if (Runs(i) && sequences_[i].missing() == 1) GiveRows(i);
    for (int32_t i = 0; i < count(); ++i)
      if (Runs(i) && sequences_[i].missing() > 1) GiveRows(i);
    if (!went_short_ && plan_.preempt.empty()) AdmitWaiting();
    Collect();
    return std::move(plan_);
  }

 private:
  struct Given {
    int64_t rows = 0;
    int64_t new_blocks = 0;
    bool preempted = false;
  };

  int32_t count() const { return static_cast<int32_t>(sequences_.size()); }
  bool Runs(int32_t i) const { return sequences_[i].state == SequenceState::kRunning && !given_[i].preempted; }

  // Rows that the budgets allow, blocks aside.
  int64_t ChunkOf(int32_t i) const {
    const int64_t chunk = std::min(sequences_[i].missing(), rows_left_);
    return limits_.max_chunk_tokens > 0 ? std::min(chunk, limits_.max_chunk_tokens) : chunk;
  }

  void GiveRows(int32_t i) {
    if (rows_left_ == 0) return;
    const SequenceProgress& s = sequences_[i];
    while (blocks_free_ == 0 && s.blocks * kPageTokens == s.computed) {
      if (!PreemptOneYoungerThan(i)) {
        went_short_ = true;
        return;
      }
    }
    const int64_t room = (s.blocks + blocks_free_) * kPageTokens - s.computed;
    Give(i, std::min(ChunkOf(i), room));
  }

  void Give(int32_t i, int64_t rows) {
    const SequenceProgress& s = sequences_[i];
    given_[i].rows = rows;
    given_[i].new_blocks = std::max<int64_t>(0, BlocksFor(s.computed + rows) - s.blocks);
    blocks_free_ -= given_[i].new_blocks;
    rows_left_ -= rows;
    SF_CHECK_GE(rows, 1);
    SF_CHECK_GE(blocks_free_, 0);
    SF_CHECK_GE(rows_left_, 0);
  }

  // The victim may have been given rows already, when it is a young decode and `i` an old prefill.
  bool PreemptOneYoungerThan(int32_t i) {
    for (int32_t victim = count() - 1; victim > i; --victim) {
      if (!Runs(victim)) continue;
      Given& g = given_[victim];
      blocks_free_ += sequences_[victim].blocks + g.new_blocks;
      rows_left_ += g.rows;
      g = {.rows = 0, .new_blocks = 0, .preempted = true};
      --running_;
      plan_.preempt.push_back(victim);
      return true;
    }
    return false;
  }

  void AdmitWaiting() {
    for (int32_t i = 0; i < count(); ++i) {
      if (sequences_[i].state != SequenceState::kWaiting) continue;
      if (running_ >= limits_.max_num_seqs || rows_left_ == 0) return;
      const int64_t rows = ChunkOf(i);
      if (BlocksFor(rows) + running_ > blocks_free_) return;
      plan_.admit.push_back(i);
      ++running_;
      Give(i, rows);
    }
  }

  void Collect() {
    for (const bool decodes : {true, false}) {
      for (int32_t i = 0; i < count(); ++i) {
        const bool decode = sequences_[i].state == SequenceState::kRunning && sequences_[i].missing() == 1;
        if (given_[i].rows == 0 || decode != decodes) continue;
        plan_.rows.push_back({.sequence = i, .rows = given_[i].rows, .new_blocks = given_[i].new_blocks});
      }
    }
  }

  const std::vector<SequenceProgress>& sequences_;
  const SchedLimits& limits_;
  std::vector<Given> given_;  // [sequences]
  int64_t blocks_free_;
  int64_t rows_left_;
  int64_t running_ = 0;
  bool went_short_ = false;
  StepPlan plan_;
};

}  // namespace

StepPlan PlanStep(const SchedSnapshot& snapshot, const SchedLimits& limits) { return Planner(snapshot, limits).Plan(); }

}  // namespace sixfold
