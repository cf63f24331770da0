// What one forward pass computes, as plain values. The engine makes it from a StepPlan; the model carries it out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace sixfold {

// The rows of one request: consecutive positions, at most one sequence a request in a step.
struct StepSequence {
  int64_t first_position = 0;          // absolute position of its first row
  int64_t rows = 0;
  int64_t logit_rows = 0;              // logits are wanted for its last logit_rows rows (0: none)
  // Block numbers of positions [0, first_position + rows). Where ranks share the context: owner * blocks of a rank + block of
  // the owner; when keys rest in stripes (ContextRule::by_token) the blocks that all of them have under the same number, each
  // for 16 positions of every owner.
  std::vector<int32_t> blocks;
};

// Rows of all sequences, one after the other in order.
struct StepBatch {
  std::vector<TokenId> tokens;         // [rows]
  std::vector<StepSequence> sequences;
};

// Routes of a mixture-of-experts pass, recorded or forced: experts[layer][row * top_k + slot], sparse layers in order (of the
// model, or of a stage where that is said). Forced, a row whose first slot is kChosenByGate is left to the gate.
inline constexpr int32_t kChosenByGate = -1;
struct ExpertRoutes {
  int top_k = 0;
  std::vector<std::vector<int32_t>> experts;
};

}  // namespace sixfold
