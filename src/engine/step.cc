#include "engine/step.h"

#include <chrono>
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/micro_batch.h"

namespace sixfold {

StepRunner::StepRunner(StepModel& model, std::span<BlockPool> pools, int32_t blocks)
    : model_(model), pools_(pools), placement_(model.kv_placement()), blocks_(blocks), sampler_(model.vocab()), batches_(pools.size()) {}

Status StepRunner::Run(const GlobalPlan& plan, std::span<Sequence* const> sequences) {
  SF_CHECK_EQ(plan.replicas.size(), batches_.size());
  result_.rows = 0;
  int64_t longest = 0;  // rows of a replica: they decide into how many micro-batches all are cut
  for (const StepPlan& of_replica : plan.replicas) {
    int64_t rows = 0;
    for (const PlannedRows& planned : of_replica.rows) rows += planned.rows;
    longest = std::max(longest, rows);
  }
  for (size_t r = 0; r < batches_.size(); ++r) {
    MoveBlocks(plan.replicas[r], static_cast<int32_t>(r), longest, sequences);
    BuildBatch(plan.replicas[r], sequences, batches_[r]);
  }
  SF_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Forward(batches_));
  SampleRows(plan, sequences, logits);
  return OkStatus();
}

void StepRunner::ReleaseBlocks(Sequence& sequence) {
  for (const int32_t block : sequence.blocks) pools_[sequence.progress.replica].Give(BlockId(block));
  sequence.blocks.clear();
}

void StepRunner::MoveBlocks(const StepPlan& plan, int32_t replica, int64_t longest, std::span<Sequence* const> sequences) {
  for (const int32_t i : plan.preempt) {
    ReleaseBlocks(*sequences[i]);
    sequences[i]->progress.Preempt();
  }
  for (const int32_t i : plan.admit) sequences[i]->progress.Admit(replica);
  int64_t rows = 0;
  for (const PlannedRows& planned : plan.rows) rows += planned.rows;
  const std::vector<int64_t> bounds = MicroBatchEnds(rows, MicroBatchCount(longest, placement_.stages));
  rows = 0;
  for (const PlannedRows& planned : plan.rows) {
    Sequence& s = *sequences[planned.sequence];
    SF_CHECK_EQ(s.progress.replica, replica);
    const KvDemand demand{.first_position = s.progress.computed, .rows = planned.rows, .units = s.progress.blocks, .batch_row = rows};
    pools_[replica].TakeFor(placement_, demand, bounds, &s.blocks);
    SF_CHECK_EQ(static_cast<int64_t>(s.blocks.size()), s.progress.blocks + planned.new_blocks);
    s.progress.blocks = static_cast<int64_t>(s.blocks.size());
    rows += planned.rows;
  }
}

void StepRunner::BuildBatch(const StepPlan& plan, std::span<Sequence* const> sequences, StepBatch& batch) {
  batch.tokens.clear();
  batch.sequences.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const Sequence& s = *sequences[plan.rows[i].sequence];
    const int64_t rows = plan.rows[i].rows;
    SF_CHECK_EQ(s.progress.known, static_cast<int64_t>(s.tokens.size()));
    StepSequence& out = batch.sequences[i];
    out.first_position = s.progress.computed;
    out.rows = rows;
    out.logit_rows = rows == s.progress.missing() ? 1 : 0;  // the last known token decides the next one
    out.blocks = BlockTable(placement_, s.blocks, s.progress.computed + rows, blocks_);
    const auto first = s.tokens.begin() + s.progress.computed;
    batch.tokens.insert(batch.tokens.end(), first, first + rows);
  }
  result_.rows += static_cast<int64_t>(batch.tokens.size());
}

void StepRunner::SampleRows(const GlobalPlan& plan, std::span<Sequence* const> sequences,
                            std::span<const float> logits) {
  const int64_t vocab = model_.vocab();
  result_.sampled.clear();
  int64_t row = 0;
  for (size_t r = 0; r < batches_.size(); ++r) {
    for (size_t i = 0; i < plan.replicas[r].rows.size(); ++i) {
      const PlannedRows& planned = plan.replicas[r].rows[i];
      Sequence& s = *sequences[planned.sequence];
      s.progress.Advance(planned.rows);
      if (batches_[r].sequences[i].logit_rows == 0) continue;
      Result<SampledToken> token = sampler_.Sample({.logits = logits.subspan(row * vocab, vocab),
                                                    .params = *s.sampling,
                                                    .prompt = s.prompt(),
                                                    .answer = s.answer(),
                                                    .end_ids = s.end_ids,
                                                    .seed = s.seed,
                                                    .choice = static_cast<uint32_t>(s.choice)});
      ++row;
      if (token.ok()) {
        token->sampled_at = std::chrono::steady_clock::now();
        s.tokens.push_back(token->token);
        s.progress.Append();
      }
      result_.sampled.push_back({&s, std::move(token)});
    }
  }
  SF_CHECK_EQ(row * vocab, static_cast<int64_t>(logits.size()));
}

}  // namespace sixfold
