// What a rank of a layout takes of its machine's memory, from the headers of the files alone. The
// engine's start, `--dry-run` and the planner ask here.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/geometry.h"
#include "mesh/layout.h"
#include "model/config.h"
#include "model/model.h"
#include "weights/weight_store.h"

namespace sixfold {

// The steps that will come.
struct MemoryWork {
  std::vector<int64_t> step_rows;  // rows of a replica in a step: the sizes that count (WorstSteps)
  int64_t wanted_rows_max = 0;     // of a step of a replica, logits are wanted for these
  int64_t sequences_max = 1;       // of a step of a replica
  int64_t positions_max = 0;       // of a sequence
  int64_t embedded_tokens_max = -1;  // of all steps together; -1: no bound
  int busy_replicas = 1;             // the others never get a row
  int32_t kv_blocks = 0;             // of a replica
  int64_t tokenizer_bytes = 0;       // on rank 0
  enum class Sampling : uint8_t { kNo, kYes } sampling = Sampling::kNo;  // rank 0 draws tokens
};

// Bytes. shard and kv are exact, the others upper bounds for the steps of a MemoryWork. Beside them
// a process holds its code and the libraries' own memory.
struct RankMemory {
  int rank = 0, node = 0;
  int64_t shard = 0;      // packed weights in whole pages, norms, biases
  int64_t embedding = 0;  // first stage: rows of the mapped file that stay in memory once read
  int64_t kv = 0;         // all blocks
  int64_t activations =
      0;               // of the largest micro-batch, with scratch and residual streams under way
  int64_t logits = 0;  // of the stage, under way, gathered; and what the sampler keeps
  int64_t comm = 0;    // parts of cut sums that other ranks send, commands, message buffers
  int64_t tokenizer = 0;

  int64_t total() const { return shard + embedding + kv + activations + logits + comm + tokenizer; }
};

// [world]. The tensors have been checked (CheckTensors), the layout is one of this model. Errors: a
// tensor is missing.
Result<std::vector<RankMemory>> PlanMemory(const WeightStore& store, const ModelConfig& config,
                                           const ModelOptions& options, const Layout& layout,
                                           const MemoryWork& work);

}  // namespace sixfold
