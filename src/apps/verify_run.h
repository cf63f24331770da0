// The work that `verify` gives to every layout: a prefill of sequences of many lengths in one step, then decode steps, all
// logits kept.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/step_model.h"

namespace sixfold::apps {

struct VerifyWork {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<TokenId>> answers;  // [sequence][step]: what each decode step computes
  std::vector<StepRoutes> routes;             // [step], of one replica: forced on all when there
  int decode_steps = 0;
  int64_t vocab = 0;

  int64_t steps() const { return 1 + decode_steps; }
  // Rows of a step: prompts in order, or one a sequence.
  int64_t rows(int64_t step) const;
};

// Prompts of ragged lengths that fit the model, ids from a fixed generator.
VerifyWork MakeVerifyWork(int64_t vocab, int64_t max_positions, int decode_steps);

// Sequences of each replica: shared out in order, the last of four or more replicas stays idle.
std::vector<std::vector<int>> SequencesOf(const VerifyWork& work, int replicas);
// One step's batches, [replica], without block tables.
std::vector<StepBatch> BatchesOf(const VerifyWork& work, int replicas, int64_t step);

// Logits of a step, [rows(step)][vocab], in order of sequences whatever the replicas.
using OnStep = std::function<Status(int64_t step, std::span<const float> logits)>;
Status RunVerifyWork(StepModel& model, const VerifyWork& work, const OnStep& on_step);

}  // namespace sixfold::apps
