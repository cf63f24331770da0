// From assignments to the figures that people watch.
#pragma once

#include <vector>

#include "engine/rank_messages.h"
#include "engine/step_model.h"
#include "mesh/layout.h"

namespace sixfold {

// tokens: [sparse layers of the model, experts]. Bytes and seconds stay 0.
ExpertLoad LoadOf(const Layout& layout, std::vector<int64_t> tokens);
// Of all ranks' reports, [world].
ExpertLoad LoadOf(const Layout& layout, const std::vector<RankReport>& reports);

}  // namespace sixfold
