// What one rank holds of a model: its share of the packed weights, and the forward pass over them.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/numerics.h"
#include "kv/geometry.h"
#include "kv/storage.h"
#include "mesh/layout.h"
#include "model/config.h"
#include "model/rank_comm.h"
#include "model/step_batch.h"
#include "trace/recorder.h"

namespace sixfold {

class WeightStore;

struct ModelOptions {
  Numerics numerics = Numerics::kReproducible;
  ActDType act = ActDType::kBF16;
  Isa isa = Isa::kScalar;
  int threads = 1;
  int attention_chunk = 256;
  int reduction_leaves = 8;
  std::function<void(double done)> on_progress;    // 0 to 1 while weights are packed; may be empty
};

// What of the arithmetic is not in the weights: config, dtypes, numerics mode and version, leaves
// and chunk.
std::string NumericsIdentity(const ModelConfig& config, const ModelOptions& options);
// That and the weights (WeightsHash): K/V of unequal fingerprints are never shared.
std::string ModelFingerprint(const Digest256& weights, const ModelConfig& config,
                             const ModelOptions& options);
// 128 bits of a hash as hex digits.
std::string FingerprintText(const Digest256& digest);

// One step of a rank's stage.
struct StageWork {
  std::span<const StepBatch> micro_batches;          // of its own replica
  // [micro-batches][dp][cp]: rows of every tp group of a stage; only read where rows travel to experts.
  std::span<const std::vector<std::vector<int64_t>>> rows = {};
  int64_t step = 0;                                  // for messages
};

// What happened in a rank's expert layers since start.
struct ExpertCounters {
  std::vector<int64_t> tokens;  // [sparse layers of the stage, experts]: assignments of those rows that this rank answers for
  std::chrono::nanoseconds dispatch{0}, combine{0};  // in both directions, waiting included
};

// Thread rule: Load in one thread; Forward and RunStage by one step thread at a time.
class Model {
 public:
  // Checks names and shapes of all tensors against the config before any arithmetic. Errors: kInvalidFile names file,
  // tensor, expected and got; kOutOfMemory.
  static Result<std::unique_ptr<Model>> Load(std::unique_ptr<WeightStore> store, const ModelConfig& config,
                                             const ModelOptions& options);
  // The share of `rank` under a layout. The store is shared: the ranks of one process read one mapping.
  static Result<std::unique_ptr<Model>> LoadShard(std::shared_ptr<const WeightStore> store, const ModelConfig& config,
                                                  const ModelOptions& options, const Layout& layout, int rank);
  ~Model();

  const Layout& layout() const;
  const RankShard& shard() const;
  const ModelConfig& config() const;
  const ModelOptions& options() const;
  KvGeometry kv_geometry() const;
  int64_t packed_bytes() const;

  // Whole models only. Runs one pass; writes K/V of its rows to kv. Returns logits [sum of logit_rows][vocab], valid until the next call.
  // Token ids must be in [0, vocab) (a bug otherwise: callers check requests).
  std::span<const float> Forward(const StepBatch& batch, KvStorage& kv);

  // Whom this rank talks to; what it points to outlives the model. Needed before RunStage under more than one rank.
  void Connect(const RankComm& comm);
  // This rank's part of one step: its stage over the micro-batches, in order. Takes the residual stream from
  // the stage before and hands it on; on the last stage logits go to rank 0, or stay in stage_logits() on rank 0 itself.
  // Errors: the transport's.
  Status RunStage(const StageWork& work, KvStorage& kv);
  // Writes down what every operation of RunStage carries, for the communicators that it is connected to. Null: off.
  void Trace(trace::Recorder* recorder);
  // Called after each layer of RunStage with this rank's rows of the residual stream; for finding where two runs part. May be
  // empty.
  struct Observation {
    int layer = 0, micro_batch = 0;
    std::span<const int32_t> row_numbers;  // of the micro-batch: which rows these are
    std::span<const float> rows;           // [rows, hidden]
  };
  void Observe(std::function<void(const Observation&)> observer);
  // Rank 0, when it is of the last stage: [wanted rows of all micro-batches][vocabulary share].
  std::span<const float> stage_logits() const;

  // Recorded: of the last step, [sparse layers of the stage][rows of its replica that this rank answers for (Layout::DispatchRows
  // of each micro-batch, in order), top_k]; all rows of a whole model. Forced routes replace the gate's choice in the next step:
  // [sparse layers of the model][rows of the replica's batch, top_k].
  enum class Recording : uint8_t { kOff, kOn };
  void RecordRoutes(Recording recording);
  const ExpertRoutes& recorded_routes() const;
  void ForceRoutes(ExpertRoutes routes);
  ExpertCounters expert_counters() const;
  // The most bytes of keys and values under way between ranks that share a context, since start.
  int64_t transit_bytes_max() const;

 private:
  Model();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold
