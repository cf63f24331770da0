// Which tensors a model of a config has, and whether a store has them.
#pragma once

#include "base/status.h"
#include "model/arch/family.h"
#include "model/config.h"
#include "weights/weight_store.h"

namespace sixfold {

// What the tensors of a config's family are called in a store of this format.
TensorNames NamesFor(const WeightStore& store, const ModelConfig& config);

// Compares every tensor of the store with what the config implies. kInvalidFile names file, tensor, expected and got of the first
// that is missing, extra, or of a wrong shape or type.
Status CheckTensors(const WeightStore& store, const ModelConfig& config);

}  // namespace sixfold
