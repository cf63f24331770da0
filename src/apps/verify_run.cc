#include "apps/verify_run.h"

#include <algorithm>

#include "base/random.h"
#include "kv/block_pool.h"
#include "mesh/axes.h"
#include "model/micro_batch.h"

namespace sixfold::apps {
int64_t VerifyWork::rows(int64_t step) const {
  int64_t rows = 0;
  for (const VerifyPiece& piece : steps[static_cast<size_t>(step)]) rows += piece.rows;
  return rows;
}

TokenId VerifyWork::TokenAt(int sequence, int64_t position) const {
  const auto s = static_cast<size_t>(sequence), p = static_cast<size_t>(position);
  return p < prompts[s].size() ? prompts[s][p] : answers[s][p - prompts[s].size()];
}

VerifyWork MakeVerifyWork(const VerifyWorkOptions& options) {
  VerifyWork work{.vocab = options.vocab};
  const int64_t longest = std::max<int64_t>(1, options.max_positions - options.decode_steps);
  uint32_t number = 0;
  for (const int64_t length : options.prompt_lengths) {
    std::vector<TokenId> prompt;
    for (int64_t i = 0; i < std::min(length, longest); ++i) {
      const double u = RandomUniform({.seed = 4, .choice = 0, .position = number++, .purpose = RandomPurpose::kSample});
      prompt.push_back(static_cast<TokenId>(u * static_cast<double>(options.vocab)));
    }
    work.positions_max = std::max(work.positions_max, static_cast<int64_t>(prompt.size()) + options.decode_steps);
    work.prompts.push_back(std::move(prompt));
  }
  work.answers.resize(work.prompts.size());
  std::vector<int64_t> next(work.prompts.size());
  while (true) {
    std::vector<VerifyPiece> step;
    for (size_t s = 0; s < next.size(); ++s) {
      const auto prompt = static_cast<int64_t>(work.prompts[s].size());
      const int64_t rows = next[s] < prompt ? std::min(options.prefill_chunk, prompt - next[s])
                                            : next[s] < prompt + options.decode_steps ? 1 : 0;
      if (rows > 0) step.push_back({static_cast<int>(s), next[s], rows});
      next[s] += rows;
    }
    if (step.empty()) return work;
    work.steps.push_back(std::move(step));
  }
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
    for (const VerifyPiece& piece : work.steps[static_cast<size_t>(step)]) {
      if (std::find(sequences.begin(), sequences.end(), piece.sequence) == sequences.end()) continue;
      batch.sequences.push_back(
          {.first_position = piece.first_position, .rows = piece.rows, .logit_rows = piece.rows, .blocks = {}});
      for (int64_t r = 0; r < piece.rows; ++r) batch.tokens.push_back(work.TokenAt(piece.sequence, piece.first_position + r));
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

// Block tables of one step's batches: a memory of units for each replica.
class Tables {
 public:
  Tables(const KvPlacement& placement, int64_t blocks, const VerifyWork& work, int replicas)
      : placement_(placement),
        blocks_(blocks),
        work_(work),
        pools_(static_cast<size_t>(replicas), BlockPool(static_cast<int32_t>(placement.UnitsOfPool(blocks)), placement.pools())),
        units_(work.prompts.size()) {}

  void Fill(int64_t step, std::vector<StepBatch>* batches) {
    size_t longest = 0;
    for (const StepBatch& batch : *batches) longest = std::max(longest, batch.tokens.size());
    const int count = MicroBatchCount(static_cast<int64_t>(longest), placement_.stages);
    auto piece = work_.steps[static_cast<size_t>(step)].begin();  // replicas hold the sequences in order
    for (size_t r = 0; r < batches->size(); ++r) {
      StepBatch& batch = (*batches)[r];
      const std::vector<int64_t> ends = MicroBatchEnds(static_cast<int64_t>(batch.tokens.size()), count);
      int64_t row = 0;
      for (StepSequence& s : batch.sequences) {
        std::vector<int32_t>& own = units_[static_cast<size_t>((piece++)->sequence)];
        pools_[r].TakeFor(placement_,
                          {.first_position = s.first_position, .rows = s.rows, .units = static_cast<int64_t>(own.size()), .batch_row = row},
                          ends, &own);
        s.blocks = BlockTable(placement_, own, s.first_position + s.rows, blocks_);
        row += s.rows;
      }
    }
  }

 private:
  const KvPlacement placement_;
  const int64_t blocks_;
  const VerifyWork& work_;
  std::vector<BlockPool> pools_;              // [replica]
  std::vector<std::vector<int32_t>> units_;  // [sequence]
};

}  // namespace

Status RunVerifyWork(StepModel& model, const VerifyWork& work, const OnStep& on_step) {
  const KvPlacement placement = model.kv_placement();
  const int64_t blocks = placement.BlocksOfOwner(work.positions_max, static_cast<int64_t>(work.prompts.size()));
  SF_RETURN_IF_ERROR(model.AllocateKv(static_cast<int32_t>(blocks)));
  Tables tables(placement, blocks, work, model.replicas());
  for (int64_t step = 0; step < static_cast<int64_t>(work.steps.size()); ++step) {
    std::vector<StepBatch> batches = BatchesOf(work, model.replicas(), step);
    tables.Fill(step, &batches);
    // Replicas hold the sequences in order, so that their rows are in order too.
    if (!work.routes.empty()) model.ForceRoutes(RoutesOf(work.routes[static_cast<size_t>(step)], batches));
    SF_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward(batches));
    SF_RETURN_IF_ERROR(on_step(step, logits));
  }
  return OkStatus();
}

}  // namespace sixfold::apps
