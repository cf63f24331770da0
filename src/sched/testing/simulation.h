// Carries plans out on counts alone, so that the scheduler can be tested (and later priced) without a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sched/plan.h"

namespace sixfold {

// Checks every plan against the budgets while it carries it out; a broken one is an SF_CHECK failure.
class SchedSimulation {
 public:
  struct Arrival {
    std::string name;
    int64_t prompt_tokens = 1;
    int64_t answer_tokens = 1;
  };

  // `blocks` on each replica.
  SchedSimulation(const SchedLimits& limits, int64_t blocks, int32_t replicas = 1)
      : limits_(limits), blocks_total_(blocks), replicas_(replicas) {}

  void Arrive(const Arrival& arrival);
  void Abort(const std::string& name);
  // One step; returns what it did: "preempt C | admit B | A+1 B+16 | done A | free 3", empty parts left out; a line for
  // each replica.
  std::vector<std::string> Step();

  int64_t blocks_used() const;
  int32_t replicas_busy() const;  // with running sequences
  int64_t replica_changes() const { return replica_changes_; }  // of sequences that started again somewhere else
  int64_t alive() const { return static_cast<int64_t>(alive_.size()); }
  const std::string& Name(int64_t index) const { return alive_[index].name; }  // in order of arrival
  int64_t rows_computed() const { return rows_computed_; }
  int64_t preemptions() const { return preemptions_; }

 private:
  struct Simulated {
    std::string name;
    int64_t tokens_at_end = 0;  // prompt and answer
    SequenceProgress progress;
    std::optional<int32_t> last_replica;
  };

  bool RunsOn(const Simulated& s, int32_t replica) const;
  int64_t BlocksUsed(int32_t replica) const;
  void CheckBudgets(const StepPlan& plan, int32_t replica) const;
  void CheckVictims(const StepPlan& plan, int32_t replica) const;
  void CheckQueue(const GlobalPlan& plan) const;
  bool Compute(const PlannedRows& rows);  // true when that was the last token
  // Adds the indices of those that ended to `done`.
  std::string CarryOut(const StepPlan& plan, int32_t replica, std::vector<int32_t>& done);
  std::string Names(const std::vector<int32_t>& indices) const;

  SchedLimits limits_;
  int64_t blocks_total_;  // of a replica
  int32_t replicas_;
  std::vector<Simulated> alive_;  // in order of arrival
  int64_t rows_computed_ = 0;
  int64_t preemptions_ = 0;
  int64_t replica_changes_ = 0;
};

}  // namespace sixfold
