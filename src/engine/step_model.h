// What the engine needs of a model: forward passes over the K/V memory of its replicas, and a few sizes. ModelAdapter
// puts a loaded Model behind it, testing/ has a fake, a group of ranks (rank_group.h) is the third.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "engine/expert_load.h"
#include "kv/geometry.h"
#include "kv/placement.h"
#include "mesh/collectives.h"
#include "model/step_batch.h"

namespace sixfold {

class Model;

// Thread rule: the sizes may be read from any thread; AllocateKv and Forward are called by one thread at a time.
class StepModel {
 public:
  virtual ~StepModel() = default;

  // Data-parallel replicas: each has its own requests and blocks, and all take part in every step.
  virtual int replicas() const { return 1; }
  // Of the rank whose blocks are the largest: one block of a replica costs at most that much on any rank.
  virtual KvGeometry kv_geometry() const = 0;
  // How a replica's K/V are dealt to the ranks that share its context.
  virtual KvPlacement kv_placement() const { return {}; }
  // Ranks that share this machine's memory, each with blocks of its own.
  virtual int ranks_here() const { return 1; }
  virtual int64_t vocab() const = 0;
  virtual int64_t max_positions() const = 0;  // positions below it can be computed
  virtual std::span<const TokenId> eos_ids() const = 0;

  // K/V memory of `blocks` blocks for each rank, once, before the first Forward. kOutOfMemory names the flag that
  // shrinks it.
  virtual Status AllocateKv(int32_t blocks) = 0;
  // One pass of all replicas, batches[replica]; an idle replica's batch is empty. Writes K/V of the rows; returns logits
  // [sum of logit_rows][vocab] of all replicas in order, valid until the next call. A failure ends the instance: no pass
  // can follow.
  virtual Result<std::span<const float>> Forward(std::span<const StepBatch> batches) = 0;

  // Router replay, for models with experts. While recording, last_routes() are those of the last pass; routes that are forced
  // replace the gate's choice in the next pass, whose rows they must fit. By the thread that calls Forward.
  virtual void RecordRoutes(bool) {}
  virtual const StepRoutes& last_routes() const {
    static const StepRoutes kNone;
    return kNone;
  }
  virtual void ForceRoutes(StepRoutes) {}
  // Lags behind by a second at most. Any thread.
  virtual ExpertLoad expert_load() const { return {}; }
  // Whatever is counted is counted from here on. By the thread that calls Forward, between passes.
  virtual Status ResetCounters() { return OkStatus(); }

  // A failure that is known before a pass has met it (a rank that died while the engine was idle). Any thread, also
  // during Forward.
  virtual Status health() const { return OkStatus(); }
};

std::unique_ptr<StepModel> AdaptModel(std::unique_ptr<Model> model);

}  // namespace sixfold
