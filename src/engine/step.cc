#include "engine/step.h"

#include <optional>
#include <utility>

#include "base/check.h"

namespace sixfold {

StepRunner::StepRunner(StepModel& model, BlockPool& pool) : model_(model), pool_(pool), sampler_(model.vocab()) {}

StepResult& StepRunner::Run(const StepPlan& plan, std::span<Sequence* const> sequences) {
  MoveBlocks(plan, sequences);
  BuildBatch(plan, sequences);
  const Result<std::span<const float>> logits = model_.Forward({&batch_, 1});
  SF_CHECK(logits.ok());
  SampleRows(plan, sequences, *logits);
  return result_;
}

void StepRunner::ReleaseBlocks(Sequence& sequence) {
  for (const int32_t block : sequence.blocks) pool_.Give(BlockId(block));
  sequence.blocks.clear();
}

void StepRunner::MoveBlocks(const StepPlan& plan, std::span<Sequence* const> sequences) {
  for (const int32_t i : plan.preempt) {
    ReleaseBlocks(*sequences[i]);
    sequences[i]->progress.Preempt();
  }
  for (const int32_t i : plan.admit) sequences[i]->progress.Admit();
  for (const PlannedRows& planned : plan.rows) {
    Sequence& s = *sequences[planned.sequence];
    for (int64_t n = 0; n < planned.new_blocks; ++n) {
      const std::optional<BlockId> block = pool_.Take();
      SF_CHECK(block.has_value());  // the plan counted them
      s.blocks.push_back(block->value());
    }
    s.progress.blocks = static_cast<int64_t>(s.blocks.size());
  }
}

void StepRunner::BuildBatch(const StepPlan& plan, std::span<Sequence* const> sequences) {
  batch_.tokens.clear();
  batch_.sequences.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const Sequence& s = *sequences[plan.rows[i].sequence];
    const int64_t rows = plan.rows[i].rows;
    SF_CHECK_EQ(s.progress.known, static_cast<int64_t>(s.tokens.size()));
    StepSequence& out = batch_.sequences[i];
    out.first_position = s.progress.computed;
    out.rows = rows;
    out.logit_rows = rows == s.progress.missing() ? 1 : 0;  // the last known token decides the next one
    out.blocks.assign(s.blocks.begin(), s.blocks.end());
    const auto first = s.tokens.begin() + s.progress.computed;
    batch_.tokens.insert(batch_.tokens.end(), first, first + rows);
  }
  result_.rows = static_cast<int64_t>(batch_.tokens.size());
}

void StepRunner::SampleRows(const StepPlan& plan, std::span<Sequence* const> sequences, std::span<const float> logits) {
  const int64_t vocab = model_.vocab();
  result_.sampled.clear();
  int64_t row = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    Sequence& s = *sequences[plan.rows[i].sequence];
    s.progress.Advance(plan.rows[i].rows);
    if (batch_.sequences[i].logit_rows == 0) continue;
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
  SF_CHECK_EQ(row * vocab, static_cast<int64_t>(logits.size()));
}

}  // namespace sixfold
