#include "apps/verify_run.h"

#include <algorithm>

#include "base/random.h"
#include "kv/block_pool.h"
#include "mesh/axes.h"
#include "model/micro_batch.h"

namespace sixfold::apps {
namespace {

constexpr int64_t kPromptLengths[] = {7, 1, 33, 18, 64};

int64_t LongestPrompt(const VerifyWork& work) {
  size_t longest = 0;
  for (const auto& prompt : work.prompts) longest = std::max(longest, prompt.size());
  return static_cast<int64_t>(longest);
}

// Rows of one sequence in a step, as a part of a batch.
StepSequence Rows(const VerifyWork& work, int sequence, int64_t step) {
  const auto prompt = static_cast<int64_t>(work.prompts[static_cast<size_t>(sequence)].size());
  return {.first_position = step == 0 ? 0 : prompt + step - 1,
          .rows = step == 0 ? prompt : 1,
          .logit_rows = step == 0 ? prompt : 1,
          .blocks = {}};
}

}  // namespace

int64_t VerifyWork::rows(int64_t step) const {
  if (step > 0) return static_cast<int64_t>(prompts.size());
  int64_t rows = 0;
  for (const auto& prompt : prompts) rows += static_cast<int64_t>(prompt.size());
  return rows;
}

VerifyWork MakeVerifyWork(int64_t vocab, int64_t max_positions, int decode_steps) {
  VerifyWork work{.decode_steps = decode_steps, .vocab = vocab};
  const int64_t longest = std::max<int64_t>(1, max_positions - decode_steps);
  uint32_t position = 0;
  for (const int64_t length : kPromptLengths) {
    std::vector<TokenId> prompt;
    for (int64_t i = 0; i < std::min(length, longest); ++i) {
      const double u = RandomUniform({.seed = 4, .choice = 0, .position = position++,
                                      .purpose = RandomPurpose::kSample});
      prompt.push_back(static_cast<TokenId>(u * static_cast<double>(vocab)));
    }
    work.prompts.push_back(std::move(prompt));
  }
  work.answers.resize(work.prompts.size());
  return work;
}

std::vector<std::vector<int>> SequencesOf(const VerifyWork& work, int replicas) {
  std::vector<std::vector<int>> of(static_cast<size_t>(replicas));
  const int busy = replicas >= 4 ? replicas - 1 : replicas;
  for (int r = 0; r < busy; ++r) {
    const Share share = ShareOf(static_cast<int64_t>(work.prompts.size()), busy, r);
    for (int64_t s = share.begin; s < share.end; ++s) of[static_cast<size_t>(r)].push_back(static_cast<int>(s));
  }
  return of;
}

std::vector<StepBatch> BatchesOf(const VerifyWork& work, int replicas, int64_t step) {
  std::vector<StepBatch> batches;
  for (const std::vector<int>& sequences : SequencesOf(work, replicas)) {
    StepBatch& batch = batches.emplace_back();
    for (size_t slot = 0; slot < sequences.size(); ++slot) {
      const auto s = static_cast<size_t>(sequences[slot]);
      batch.sequences.push_back(Rows(work, sequences[slot], step));
      if (step == 0) {
        batch.tokens.insert(batch.tokens.end(), work.prompts[s].begin(), work.prompts[s].end());
      } else {
        batch.tokens.push_back(work.answers[s][static_cast<size_t>(step - 1)]);
      }
    }
  }
  return batches;
}

namespace {

// One rank's routes of a step, dealt to the replicas that have the rows.
StepRoutes RoutesOf(const StepRoutes& whole, std::span<const StepBatch> batches) {
  const auto& layers = whole.replicas.front();
  size_t rows = 0;
  for (const StepBatch& batch : batches) rows += batch.tokens.size();
  StepRoutes routes;
  size_t first = 0;
  for (const StepBatch& batch : batches) {
    auto& of = routes.replicas.emplace_back();
    for (const std::vector<int32_t>& all : layers) {
      const size_t top_k = all.size() / rows;
      const auto begin = all.begin() + static_cast<int64_t>(first * top_k);
      of.emplace_back(begin, begin + static_cast<int64_t>(batch.tokens.size() * top_k));
    }
    first += batch.tokens.size();
  }
  return routes;
}

}  // namespace

namespace {

// Takes what the rows of a replica's batch lack, and writes its block tables. units: [sequences of the replica].
void FillBlocks(const KvPlacement& placement, int64_t blocks, int micro_batches, BlockPool* pool,
                std::vector<std::vector<int32_t>>* units, StepBatch* batch) {
  const std::vector<int64_t> ends = MicroBatchEnds(static_cast<int64_t>(batch->tokens.size()), micro_batches);
  int64_t row = 0;
  for (size_t i = 0; i < batch->sequences.size(); ++i) {
    StepSequence& s = batch->sequences[i];
    std::vector<int32_t>& own = (*units)[i];
    pool->TakeFor(placement,
                  {.first_position = s.first_position, .rows = s.rows, .units = static_cast<int64_t>(own.size()), .batch_row = row},
                  ends, &own);
    s.blocks = BlockTable(placement, own, s.first_position + s.rows, blocks);
    row += s.rows;
  }
}

}  // namespace

Status RunVerifyWork(StepModel& model, const VerifyWork& work, const OnStep& on_step) {
  const KvPlacement placement = model.kv_placement();
  const int64_t blocks = placement.BlocksOfOwner(LongestPrompt(work) + work.decode_steps,
                                                 static_cast<int64_t>(work.prompts.size()));
  SF_RETURN_IF_ERROR(model.AllocateKv(static_cast<int32_t>(blocks)));
  std::vector<BlockPool> pools(static_cast<size_t>(model.replicas()),
                               BlockPool(static_cast<int32_t>(placement.UnitsOfPool(blocks)), placement.pools()));
  std::vector<std::vector<std::vector<int32_t>>> units(pools.size(), std::vector<std::vector<int32_t>>(work.prompts.size()));
  for (int64_t step = 0; step < work.steps(); ++step) {
    std::vector<StepBatch> batches = BatchesOf(work, model.replicas(), step);
    size_t longest = 0;
    for (const StepBatch& batch : batches) longest = std::max(longest, batch.tokens.size());
    const int count = MicroBatchCount(static_cast<int64_t>(longest), placement.stages);
    for (size_t r = 0; r < batches.size(); ++r) FillBlocks(placement, blocks, count, &pools[r], &units[r], &batches[r]);
    // Replicas hold the sequences in order, so that their rows are in order too.
    if (!work.routes.empty()) model.ForceRoutes(RoutesOf(work.routes[static_cast<size_t>(step)], batches));
    SF_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward(batches));
    SF_RETURN_IF_ERROR(on_step(step, logits));
  }
  return OkStatus();
}

}  // namespace sixfold::apps
