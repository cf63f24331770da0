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

int64_t SchedSimulation::blocks_used() const {
  int64_t used = 0;
  for (const Simulated& s : alive_) used += s.progress.blocks;
  return used;
}

void SchedSimulation::CheckBudgets(const StepPlan& plan) const {
  int64_t rows = 0;
  for (const PlannedRows& r : plan.rows) {
    rows += r.rows;
    if (limits_.max_chunk_tokens > 0) SF_CHECK_LE(r.rows, limits_.max_chunk_tokens);
  }
  SF_CHECK_LE(rows, limits_.max_num_batched_tokens);
  // The oldest of those that run is never the one to give way.
  for (size_t i = 0; i < alive_.size(); ++i) {
    if (alive_[i].progress.state != SequenceState::kRunning) continue;
    for (const int32_t victim : plan.preempt) SF_CHECK_NE(victim, static_cast<int32_t>(i));
    break;
  }
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

std::string SchedSimulation::Step() {
  SchedSnapshot snapshot{.sequences = {}, .blocks_free = blocks_total_ - blocks_used()};
  for (const Simulated& s : alive_) snapshot.sequences.push_back(s.progress);
  const StepPlan plan = PlanStep(snapshot, limits_);
  CheckBudgets(plan);

  std::string text;
  const auto part = [&](const std::string& words) { text += (text.empty() ? "" : " | ") + words; };
  const auto names = [&](const std::vector<int32_t>& indices) {
    std::string out;
    for (const int32_t i : indices) out += " " + alive_[i].name;
    return out;
  };
  for (const int32_t i : plan.preempt) alive_[i].progress.Preempt();
  for (const int32_t i : plan.admit) alive_[i].progress.Admit();
  preemptions_ += static_cast<int64_t>(plan.preempt.size());
  if (!plan.preempt.empty()) part("preempt" + names(plan.preempt));
  if (!plan.admit.empty()) part("admit" + names(plan.admit));

  std::vector<int32_t> done;
  std::string rows_text;
  for (const PlannedRows& r : plan.rows) {
    rows_text += (rows_text.empty() ? "" : " ") + alive_[r.sequence].name + "+" + std::to_string(r.rows);
    if (Compute(r)) done.push_back(r.sequence);
    SF_CHECK_LE(blocks_used(), blocks_total_);
  }
  const int64_t running = std::count_if(alive_.begin(), alive_.end(),
                                        [](const Simulated& s) { return s.progress.state == SequenceState::kRunning; });
  SF_CHECK_LE(running, limits_.max_num_seqs);
  part(rows_text.empty() ? "nothing" : rows_text);
  std::sort(done.begin(), done.end());
  if (!done.empty()) part("done" + names(done));
  for (auto i = done.rbegin(); i != done.rend(); ++i) alive_.erase(alive_.begin() + *i);
  part("free " + std::to_string(blocks_total_ - blocks_used()));
  return text;
}

}  // namespace sixfold
