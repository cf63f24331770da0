// Data parallelism without ranks: each replica is a model of its own, and a pass runs them one after
// the other.
#pragma once

#include <memory>
#include <vector>

#include "engine/step_model.h"

namespace sixfold {

// `replicas`: one or more models of the same sizes, each of one replica.
std::unique_ptr<StepModel> MakeReplicatedModel(std::vector<std::unique_ptr<StepModel>> replicas);

}  // namespace sixfold
