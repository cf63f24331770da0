#include "engine/step.h"

#include <optional>
#include <utility>

#include "base/check.h"

namespace sixfold {

StepRunner::StepRunner(StepModel& model, std::span<BlockPool> pools)
    : model_(model), pools_(pools), sampler_(model.vocab()), batches_(pools.size()) {}

Status StepRunner::Run(const GlobalPlan& plan, std::span<Sequence* const> sequences) {
  SF_CHECK_EQ(plan.replicas.size(), batches_.size());
  result_.rows = 0;
  for (size_t r = 0; r < batches_.size(); ++r) {
    MoveBlocks(plan.replicas[r], static_cast<int32_t>(r), sequences);
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

void StepRunner::MoveBlocks(const StepPlan& plan, int32_t replica, std::span<Sequence* const> sequences) {
  for (const int32_t i : plan.preempt) {
    ReleaseBlocks(*sequences[i]);
    sequences[i]->progress.Preempt();
  }
  for (const int32_t i : plan.admit) sequences[i]->progress.Admit(replica);
  for (const PlannedRows& planned : plan.rows) {
    Sequence& s = *sequences[planned.sequence];
    SF_CHECK_EQ(s.progress.replica, replica);
    for (int64_t n = 0; n < planned.new_blocks; ++n) {
      const std::optional<BlockId> block = pools_[replica].Take();
      SF_CHECK(block.has_value());  // the plan counted them
      s.blocks.push_back(block->value());
    }
    s.progress.blocks = static_cast<int64_t>(s.blocks.size());
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
    out.blocks.assign(s.blocks.begin(), s.blocks.end());
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
        s.tokens.push_back(token->token);
        s.progress.Append();
      }
      result_.sampled.push_back({&s, std::move(token)});
    }
  }
  SF_CHECK_EQ(row * vocab, static_cast<int64_t>(logits.size()));
}

}  // namespace sixfold
