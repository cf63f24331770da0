// The layout's view of a model: sizes from the config, cuts from the types that the files hold.
#pragma once

#include "base/status.h"
#include "mesh/model_shape.h"
#include "model/config.h"
#include "model/model.h"
#include "weights/weight_store.h"

namespace sixfold {

// One set of cuts for all layers: bounds are whole blocks of the coarsest type that any layer's weight has. The tensors
// have been checked (CheckTensors) or the error names the one that is missing.
Result<ModelShape> ShapeOf(const WeightStore& store, const ModelConfig& config, const ModelOptions& options);

}  // namespace sixfold
