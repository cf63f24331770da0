// One step of the engine, and the page to start reading at: GlobalPlan → StepBatches → logits → StepResult.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/step_model.h"
#include "kv/block_pool.h"
#include "sched/plan.h"

namespace sixfold {

// One choice of a request while it lives. The scheduler sees `progress` only.
struct Sequence {
  RequestId request;
  int choice = 0;
  uint64_t seed = 0;
  const SamplingParams* sampling = nullptr;  // owned by the request
  std::span<const TokenId> end_ids;          // owned by the request; masked before min_tokens

  std::vector<TokenId> tokens;  // prompt, then answer; progress.known of them
  int64_t prompt_tokens = 0;
  std::vector<int32_t> blocks;  // progress.blocks units of K/V memory, by position
  SequenceProgress progress;
  std::optional<std::chrono::steady_clock::time_point> started;  // its first step

  std::span<const TokenId> prompt() const { return std::span(tokens).first(prompt_tokens); }
  std::span<const TokenId> answer() const { return std::span(tokens).subspan(prompt_tokens); }
};

struct StepResult {
  struct Sampled {
    Sequence* sequence = nullptr;
    Result<SampledToken> token;  // appended to the sequence already; a failure concerns this sequence alone
  };
  std::vector<Sampled> sampled;  // in order of replicas
  int64_t rows = 0;              // of all replicas
};

// Thread rule: the step thread owns the runner, the pools and the sequences.
class StepRunner {
 public:
  // Borrows both; one pool a replica.
  // blocks: of K/V memory on each rank.
  StepRunner(StepModel& model, std::span<BlockPool> pools, int32_t blocks);

  // Carries a plan out. `sequences` are those of the snapshot that was planned for, in its order. A failure is the
  // model's: nothing was computed, and no step can follow.
  Status Run(const GlobalPlan& plan, std::span<Sequence* const> sequences);
  StepResult& result() { return result_; }  // of the last Run that was OK

  // Gives the blocks of a sequence back to the pool of its replica; its progress is the caller's to change.
  void ReleaseBlocks(Sequence& sequence);

 private:
  void MoveBlocks(const StepPlan& plan, int32_t replica, int64_t longest, std::span<Sequence* const> sequences);
  void BuildBatch(const StepPlan& plan, std::span<Sequence* const> sequences, StepBatch& batch);
  void SampleRows(const GlobalPlan& plan, std::span<Sequence* const> sequences, std::span<const float> logits);

  StepModel& model_;
  const std::span<BlockPool> pools_;  // [replicas]
  const KvPlacement placement_;
  const int32_t blocks_;
  Sampler sampler_;
  std::vector<StepBatch> batches_;  // [replicas], reused
  StepResult result_;               // reused
};

}  // namespace sixfold
