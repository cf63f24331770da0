// What the engine needs of a model: one forward pass and a few sizes. ModelAdapter puts a loaded Model behind it,
// testing/ has a fake; a group of ranks will be a third.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "kv/geometry.h"
#include "kv/storage.h"
#include "model/step_batch.h"

namespace sixfold {

class Model;

// Thread rule: the sizes may be read from any thread; Forward is called by the engine's step thread only.
class StepModel {
 public:
  virtual ~StepModel() = default;

  virtual KvGeometry kv_geometry() const = 0;
  virtual int64_t vocab() const = 0;
  virtual int64_t max_positions() const = 0;  // positions below it can be computed
  virtual std::span<const TokenId> eos_ids() const = 0;

  // As Model::Forward: writes K/V of the batch's rows into kv and returns logits [sum of logit_rows][vocab], valid
  // until the next call.
  virtual std::span<const float> Forward(const StepBatch& batch, KvStorage& kv) = 0;
};

std::unique_ptr<StepModel> AdaptModel(std::unique_ptr<Model> model);

}  // namespace sixfold
