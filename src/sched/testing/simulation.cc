#include "sched/testing/simulation.h"

#include <algorithm>

#include "base/check.h"
#include "kv/geometry.h"

namespace sixfold {

void SchedSimulation::Arrive(const Arrival& arrival) {
  const int64_t at_end = arrival.prompt_tokens + arrival.answer_tokens;
  SF_CHECK_LE(BlocksFor(at_end - 1), blocks_total_);  // the last token's K/V is never needed
  alive_.push_back({.name = arrival.name, .tokens_at_end = at_end, .progress = {.known = arrival.prompt_tokens}});
}

void SchedSimulation::Abort(const std::string& name) {
  const auto gone = std::find_if(alive_.begin(), alive_.end(), [&](const Simulated& s) { return s.name == name; });
  SF_CHECK(gone != alive_.end());
  alive_.erase(gone);
}

bool SchedSimulation::RunsOn(const Simulated& s, int32_t replica) const {
  return s.progress.state == SequenceState::kRunning && s.progress.replica == replica;
}

int64_t SchedSimulation::BlocksUsed(int32_t replica) const {
  int64_t used = 0;
  for (const Simulated& s : alive_) used += RunsOn(s, replica) ? s.progress.blocks : 0;
  return used;
}

int64_t SchedSimulation::blocks_used() const {
  int64_t used = 0;
  for (const Simulated& s : alive_) used += s.progress.blocks;
  return used;
}

int32_t SchedSimulation::replicas_busy() const {
  int32_t busy = 0;
  for (int32_t r = 0; r < replicas_; ++r) {
    busy += std::any_of(alive_.begin(), alive_.end(), [&](const Simulated& s) { return RunsOn(s, r); });
  }
  return busy;
}

void SchedSimulation::CheckBudgets(const StepPlan& plan, int32_t replica) const {
  int64_t rows = 0;
  for (const PlannedRows& r : plan.rows) {
    rows += r.rows;
    if (limits_.max_chunk_tokens > 0) SF_CHECK_LE(r.rows, limits_.max_chunk_tokens);
  }
  SF_CHECK_LE(rows, limits_.max_num_batched_tokens);
  CheckVictims(plan, replica);
}

// Those that give way are the youngest of those that run on the replica, the youngest first, and never all of them.
void SchedSimulation::CheckVictims(const StepPlan& plan, int32_t replica) const {
  std::vector<int32_t> running;
  for (int32_t i = 0; i < static_cast<int32_t>(alive_.size()); ++i) {
    if (RunsOn(alive_[i], replica)) running.push_back(i);
  }
  if (plan.preempt.empty()) return;
  SF_CHECK_LT(plan.preempt.size(), running.size());
  for (size_t i = 0; i < plan.preempt.size(); ++i) SF_CHECK_EQ(plan.preempt[i], running[running.size() - 1 - i]);
}

// Nobody is admitted past one that waits, on whichever replica, nor in a step that sends somebody back to the queue.
void SchedSimulation::CheckQueue(const GlobalPlan& plan) const {
  SF_CHECK_EQ(static_cast<int32_t>(plan.replicas.size()), replicas_);
  std::vector<int32_t> admitted;
  bool preempts = false;
  for (const StepPlan& p : plan.replicas) {
    admitted.insert(admitted.end(), p.admit.begin(), p.admit.end());
    preempts |= !p.preempt.empty();
  }
  SF_CHECK(!preempts || admitted.empty());
  std::sort(admitted.begin(), admitted.end());
  size_t next = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(alive_.size()) && next < admitted.size(); ++i) {
    if (alive_[i].progress.state == SequenceState::kWaiting) SF_CHECK_EQ(admitted[next++], i);
  }
  SF_CHECK_EQ(next, admitted.size());
}

bool SchedSimulation::Compute(const PlannedRows& rows) {
  Simulated& s = alive_[rows.sequence];
  s.progress.blocks += rows.new_blocks;
  s.progress.Advance(rows.rows);
  SF_CHECK_EQ(s.progress.blocks, BlocksFor(s.progress.computed));  // not one more than it needs
  rows_computed_ += rows.rows;
  if (s.progress.missing() == 0) s.progress.Append();
  return s.progress.known == s.tokens_at_end;
}

std::string SchedSimulation::Names(const std::vector<int32_t>& indices) const {
  std::string out;
  for (const int32_t i : indices) out += " " + alive_[i].name;
  return out;
}

std::string SchedSimulation::CarryOut(const StepPlan& plan, int32_t replica, std::vector<int32_t>& done) {
  std::string text;
  const auto part = [&](const std::string& words) { text += (text.empty() ? "" : " | ") + words; };
  for (const int32_t i : plan.preempt) alive_[i].progress.Preempt();
  for (const int32_t i : plan.admit) {
    Simulated& s = alive_[i];
    s.progress.Admit(replica);
    if (s.last_replica && *s.last_replica != replica) ++replica_changes_;
    s.last_replica = replica;
  }
  preemptions_ += static_cast<int64_t>(plan.preempt.size());
  if (!plan.preempt.empty()) part("preempt" + Names(plan.preempt));
  if (!plan.admit.empty()) part("admit" + Names(plan.admit));

  std::vector<int32_t> ended;
  std::string rows_text;
  for (const PlannedRows& r : plan.rows) {
    SF_CHECK(RunsOn(alive_[r.sequence], replica));
    rows_text += (rows_text.empty() ? "" : " ") + alive_[r.sequence].name + "+" + std::to_string(r.rows);
    if (Compute(r)) ended.push_back(r.sequence);
    SF_CHECK_LE(BlocksUsed(replica), blocks_total_);
  }
  const int64_t running =
      std::count_if(alive_.begin(), alive_.end(), [&](const Simulated& s) { return RunsOn(s, replica); });
  SF_CHECK_LE(running, limits_.max_num_seqs);
  part(rows_text.empty() ? "nothing" : rows_text);
  std::sort(ended.begin(), ended.end());
  if (!ended.empty()) part("done" + Names(ended));
  for (const int32_t i : ended) alive_[i].progress.Finish();
  done.insert(done.end(), ended.begin(), ended.end());
  part("free " + std::to_string(blocks_total_ - BlocksUsed(replica)));
  return text;
}

std::vector<std::string> SchedSimulation::Step() {
  GlobalSnapshot snapshot;
  for (int32_t r = 0; r < replicas_; ++r) snapshot.blocks_free.push_back(blocks_total_ - BlocksUsed(r));
  for (const Simulated& s : alive_) snapshot.sequences.push_back(s.progress);
  const GlobalPlan plan = PlanStep(snapshot, limits_);
  CheckQueue(plan);
  std::vector<std::string> lines;
  std::vector<int32_t> done;
  for (int32_t r = 0; r < replicas_; ++r) {
    CheckBudgets(plan.replicas[r], r);
    lines.push_back(CarryOut(plan.replicas[r], r, done));
    if (replicas_ > 1) lines.back() = std::to_string(r) + ": " + lines.back();
  }
  std::sort(done.begin(), done.end());
  for (auto i = done.rbegin(); i != done.rend(); ++i) alive_.erase(alive_.begin() + *i);
  return lines;
}

}  // namespace sixfold
