// What a folder without a model's weights holds instead, for messages.
#pragma once

#include <filesystem>

#include "base/status.h"

namespace sixfold {

// OK when the folder holds model.safetensors or model.safetensors.index.json. Else kInvalidFile: what was found there, what is
// needed and the way to it. Looks at the names of at most 10,000 entries.
Status CheckHoldsWeights(const std::filesystem::path& folder);

}  // namespace sixfold
