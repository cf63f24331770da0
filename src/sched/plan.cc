#include "sched/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kv/geometry.h"
#include "sched/place.h"

namespace sixfold {
namespace {

// The plan of one replica in the making: what each of its sequences was given so far, and what is left.
class ReplicaPlanner {
 public:
  ReplicaPlanner(const GlobalSnapshot& snapshot, int32_t replica, const SchedLimits& limits)
      : sequences_(snapshot.sequences),
        limits_(limits),
        blocks_free_(snapshot.blocks_free[replica]),
        rows_left_(limits.max_num_batched_tokens) {
    SF_CHECK_GE(blocks_free_, 0);
    for (int32_t i = 0; i < static_cast<int32_t>(sequences_.size()); ++i) {
      const SequenceProgress& s = sequences_[i];
      if (s.state != SequenceState::kRunning || s.replica != replica) continue;
      mine_.push_back({.sequence = i});
      rows_missing_ += s.missing();
    }
    running_ = static_cast<int64_t>(mine_.size());
  }

  void PlanRunning() {
    for (size_t i = 0; i < mine_.size(); ++i)
      if (IsDecode(mine_[i]) && !mine_[i].preempted) GiveRows(i);
    for (size_t i = 0; i < mine_.size(); ++i)
      if (!IsDecode(mine_[i]) && !mine_[i].preempted) GiveRows(i);
  }

  bool preempts() const { return !plan_.preempt.empty(); }

  ReplicaLoad LoadFor(int32_t waiting) const {
    return {.room = HasRoomFor(waiting) ? ReplicaLoad::Room::kForIt : ReplicaLoad::Room::kNone,
            .running = running_,
            .rows_missing = rows_missing_,
            .blocks_free = blocks_free_};
  }

  void Admit(int32_t waiting) {
    SF_CHECK(HasRoomFor(waiting));
    plan_.admit.push_back(waiting);
    mine_.push_back({.sequence = waiting});
    ++running_;
    rows_missing_ += sequences_[waiting].missing();
    Give(mine_.back(), ChunkOf(waiting));
  }

  StepPlan Take() {
    // Those admitted stand last, however old they are.
    std::sort(mine_.begin(), mine_.end(), [](const Given& a, const Given& b) { return a.sequence < b.sequence; });
    for (const bool decodes : {true, false}) {
      for (const Given& g : mine_) {
        if (g.rows == 0 || IsDecode(g) != decodes) continue;
        plan_.rows.push_back({.sequence = g.sequence, .rows = g.rows, .new_blocks = g.new_blocks});
      }
    }
    return std::move(plan_);
  }

 private:
  struct Given {
    int32_t sequence = 0;
    int64_t rows = 0;
    int64_t new_blocks = 0;
    bool preempted = false;
  };

  bool IsDecode(const Given& g) const {
    const SequenceProgress& s = sequences_[g.sequence];
    return s.state == SequenceState::kRunning && s.missing() == 1;
  }

  int64_t BlocksFor(int64_t tokens) const { return (tokens + limits_.block_tokens - 1) / limits_.block_tokens; }

  // Rows that the budgets allow, blocks aside.
  int64_t ChunkOf(int32_t sequence) const {
    const int64_t chunk = std::min(sequences_[sequence].missing(), rows_left_);
    return limits_.max_chunk_tokens > 0 ? std::min(chunk, limits_.max_chunk_tokens) : chunk;
  }

  bool HasRoomFor(int32_t waiting) const {
    if (went_short_ || preempts() || running_ >= limits_.max_num_seqs || rows_left_ == 0) return false;
    return BlocksFor(ChunkOf(waiting)) + running_ <= blocks_free_;
  }

  void GiveRows(size_t i) {
    if (rows_left_ == 0) return;
    const SequenceProgress& s = sequences_[mine_[i].sequence];
    while (blocks_free_ == 0 && s.blocks * limits_.block_tokens == s.computed) {
      if (!PreemptOneYoungerThan(i)) {
        went_short_ = true;
        return;
      }
    }
    const int64_t room = (s.blocks + blocks_free_) * limits_.block_tokens - s.computed;
    Give(mine_[i], std::min(ChunkOf(mine_[i].sequence), room));
  }

  void Give(Given& given, int64_t rows) {
    const SequenceProgress& s = sequences_[given.sequence];
    given.rows = rows;
    given.new_blocks = std::max<int64_t>(0, BlocksFor(s.computed + rows) - s.blocks);
    blocks_free_ -= given.new_blocks;
    rows_left_ -= rows;
    SF_CHECK_GE(rows, 1);
    SF_CHECK_GE(blocks_free_, 0);
    SF_CHECK_GE(rows_left_, 0);
  }

  // The victim may have been given rows already, when it is a young decode and `i` an old prefill.
  bool PreemptOneYoungerThan(size_t i) {
    for (size_t victim = mine_.size() - 1; victim > i; --victim) {
      Given& g = mine_[victim];
      if (g.preempted) continue;
      blocks_free_ += sequences_[g.sequence].blocks + g.new_blocks;
      rows_left_ += g.rows;
      rows_missing_ -= sequences_[g.sequence].missing();
      g = {.sequence = g.sequence, .preempted = true};
      --running_;
      plan_.preempt.push_back(g.sequence);
      return true;
    }
    return false;
  }

  const std::vector<SequenceProgress>& sequences_;
  const SchedLimits& limits_;
  std::vector<Given> mine_;  // those that run here, oldest first; then those admitted
  int64_t blocks_free_;
  int64_t rows_left_;
  int64_t rows_missing_ = 0;
  int64_t running_ = 0;
  bool went_short_ = false;
  StepPlan plan_;
};

void AdmitWaiting(const GlobalSnapshot& snapshot, std::vector<ReplicaPlanner>& replicas) {
  std::vector<ReplicaLoad> loads(replicas.size());
  for (int32_t i = 0; i < static_cast<int32_t>(snapshot.sequences.size()); ++i) {
    if (snapshot.sequences[i].state != SequenceState::kWaiting) continue;
    for (size_t r = 0; r < replicas.size(); ++r) loads[r] = replicas[r].LoadFor(i);
    const std::optional<int32_t> place = PlaceSequence(loads);
    if (!place) return;
    replicas[*place].Admit(i);
  }
}

}  // namespace

GlobalPlan PlanStep(const GlobalSnapshot& snapshot, const SchedLimits& limits) {
  std::vector<ReplicaPlanner> replicas;
  replicas.reserve(snapshot.blocks_free.size());
  bool preempts = false;
  for (size_t r = 0; r < snapshot.blocks_free.size(); ++r) {
    replicas.emplace_back(snapshot, static_cast<int32_t>(r), limits).PlanRunning();
    preempts |= replicas.back().preempts();
  }
  if (!preempts) AdmitWaiting(snapshot, replicas);
  GlobalPlan plan;
  for (ReplicaPlanner& replica : replicas) plan.replicas.push_back(replica.Take());
  return plan;
}

}  // namespace sixfold
