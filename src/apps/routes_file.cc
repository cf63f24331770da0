#include "apps/routes_file.h"

#include <fmt/format.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "apps/json_text.h"
#include "apps/output.h"
#include "base/plural.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;

constexpr size_t kFileBytesMax = 256 << 20;

// One layer's experts, or what is wrong with them.
Result<std::vector<int32_t>> LayerRoutes(const ordered_json& layer, const ModelShape& shape, size_t tokens, const std::string& where) {
  if (!layer.is_array() || layer.size() != tokens) {
    return InvalidArgument(fmt::format("{}: expected a list for each of the {} tokens", where, tokens));
  }
  std::vector<int32_t> experts;
  for (size_t t = 0; t < tokens; ++t) {
    const ordered_json& row = layer[t];
    if (!row.is_array() || row.size() != static_cast<size_t>(shape.top_k)) {
      return InvalidArgument(fmt::format("{}, token {}: expected a list of {} experts", where, t, shape.top_k));
    }
    for (const ordered_json& expert : row) {
      if (!expert.is_number_integer() || expert < 0 || expert >= shape.experts) {
        return InvalidArgument(fmt::format("{}, token {}: experts are numbers from 0 to {}", where, t, shape.experts - 1));
      }
      const auto own = experts.end() - (static_cast<int64_t>(experts.size()) % shape.top_k);
      if (std::find(own, experts.end(), expert.get<int32_t>()) != experts.end()) {
        return InvalidArgument(fmt::format("{}, token {}: expert {} comes twice", where, t, expert.get<int32_t>()));
      }
      experts.push_back(expert.get<int32_t>());
    }
  }
  return experts;
}

}  // namespace

Status WriteRoutes(const std::string& path, const ModelShape& shape, std::span<const TokenId> tokens, const TokenRoutes& routes) {
  ordered_json layers = ordered_json::object();
  size_t sparse = 0;
  for (int layer = 0; layer < shape.layers(); ++layer) {
    if (!shape.sparse[static_cast<size_t>(layer)]) continue;
    const std::vector<int32_t>& experts = routes.experts[sparse++];
    ordered_json& rows = layers[std::to_string(layer + 1)] = ordered_json::array();
    for (size_t t = 0; t < tokens.size(); ++t) {
      const auto first = experts.begin() + static_cast<int64_t>(t) * shape.top_k;
      rows.push_back(std::vector<int32_t>(first, first + shape.top_k));
    }
  }
  const ordered_json json = {
      {"top_k", shape.top_k}, {"tokens", std::vector<TokenId>(tokens.begin(), tokens.end())}, {"layers", std::move(layers)}};
  return WriteTextFile(path, json.dump() + "\n");
}

Result<TokenRoutes> ReadRoutes(const std::string& path, const ModelShape& shape, std::span<const TokenId> tokens) {
  if (shape.experts == 0) return InvalidArgument("--replay-routes: the model has no experts");
  SF_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kFileBytesMax));
  const ordered_json json = ParseJson(text, 4);
  if (!json.is_object() || !json.contains("tokens") || !json.contains("layers") || !json["layers"].is_object()) {
    return InvalidArgument(path + ": expected what --record-routes writes: one JSON object with \"tokens\" and \"layers\"");
  }
  if (json["tokens"] != ordered_json(std::vector<TokenId>(tokens.begin(), tokens.end()))) {
    return InvalidArgument(path + ": was recorded for other tokens than those of --tokens");
  }
  TokenRoutes routes;
  size_t sparse = 0;
  for (int layer = 0; layer < shape.layers(); ++layer) {
    if (!shape.sparse[static_cast<size_t>(layer)]) continue;
    const std::string key = std::to_string(layer + 1), where = fmt::format("{}: layer {}", path, key);
    if (!json["layers"].contains(key)) return InvalidArgument(where + " is missing");
    SF_ASSIGN_OR_RETURN(std::vector<int32_t> experts, LayerRoutes(json["layers"][key], shape, tokens.size(), where));
    routes.experts.push_back(std::move(experts));
    ++sparse;
  }
  if (json["layers"].size() != sparse) {
    return InvalidArgument(fmt::format("{}: has {} and the model has experts in {}", path, Plural(static_cast<int64_t>(json["layers"].size()), "layer"), sparse));
  }
  return routes;
}

}  // namespace sixfold::apps
