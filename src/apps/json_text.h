// JSON that people give as files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sixfold::apps {

// Discarded (is_discarded()) when it is no JSON. What is nested deeper than `depth_max` is left out: it would only take memory.
inline nlohmann::ordered_json ParseJson(const std::string& text, int depth_max) {
  const auto keep = [depth_max](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
    return depth <= depth_max;
  };
  return nlohmann::ordered_json::parse(text, keep, false);
}

}  // namespace sixfold::apps
