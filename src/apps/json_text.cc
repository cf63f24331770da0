#include "apps/json_text.h"

#include <nlohmann/json.hpp>

namespace sixfold::apps {

nlohmann::ordered_json ParseJson(const std::string& text, int depth_max) {
  const auto keep = [depth_max](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
    return depth <= depth_max;
  };
  return nlohmann::ordered_json::parse(text, keep, false);
}

}  // namespace sixfold::apps
