// The work that `verify` gives to every layout: prompts of many lengths, prefilled in pieces beside prompts that decode
// already, all logits kept.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/step_model.h"

namespace sixfold::apps {

// Rows of one sequence in one step.
struct VerifyPiece {
  int sequence = 0;
  int64_t first_position = 0, rows = 0;
};

struct VerifyWorkOptions {
  std::vector<int64_t> prompt_lengths;  // cut down to what the model holds
  int64_t prefill_chunk = 0;            // rows of a prompt in one step, at most
  int decode_steps = 0;                 // of each prompt
  int64_t vocab = 0, max_positions = 0;
};

struct VerifyWork {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<TokenId>> answers;    // [sequence]: tokens after the prompt, as one rank chooses them
  std::vector<std::vector<VerifyPiece>> steps;  // by sequence in each; every row wants its logits
  std::vector<StepRoutes> routes;               // [step], of one replica: forced on all when there
  int64_t vocab = 0;
  int64_t positions_max = 0;                    // of a sequence, answers included

  int64_t rows(int64_t step) const;
  TokenId TokenAt(int sequence, int64_t position) const;
};

// Prompts of these lengths, ids from a fixed generator.
VerifyWork MakeVerifyWork(const VerifyWorkOptions& options);

// Sequences of each replica: shared out in order, the last of four or more replicas stays idle.
std::vector<std::vector<int>> SequencesOf(const VerifyWork& work, int replicas);
// One step's batches, [replica], without block tables.
std::vector<StepBatch> BatchesOf(const VerifyWork& work, int replicas, int64_t step);

// Logits of a step, [rows(step)][vocab], in order of sequences whatever the replicas.
using OnStep = std::function<Status(int64_t step, std::span<const float> logits)>;
Status RunVerifyWork(StepModel& model, const VerifyWork& work, const OnStep& on_step);

}  // namespace sixfold::apps
