// JSON that people give as files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sixfold::apps {

// Discarded (is_discarded()) when it is no JSON. What is nested deeper than `depth_max` is left out: it would only take memory.
nlohmann::ordered_json ParseJson(const std::string& text, int depth_max);

}  // namespace sixfold::apps
