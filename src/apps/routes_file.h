// Router replay: the experts that each token of a prompt went to, as a file that people can read and change.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "mesh/layout.h"

namespace sixfold::apps {

// experts: [sparse layers][tokens, top_k].
struct TokenRoutes {
  std::vector<std::vector<int32_t>> experts;
};

// {"top_k": 2, "tokens": [5, 9], "layers": {"1": [[3, 7], [0, 7]], …}}: layers of the model from 1, in each a list of experts
// for every token.
Status WriteRoutes(const std::string& path, const ModelShape& shape, std::span<const TokenId> tokens, const TokenRoutes& routes);
// kInvalidArgument names the file and what does not fit this model or these tokens.
Result<TokenRoutes> ReadRoutes(const std::string& path, const ModelShape& shape, std::span<const TokenId> tokens);

}  // namespace sixfold::apps
