#include "gateway/json_values.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sixfold::gateway {

Shape ShapeOf(std::string_view text) {
  Shape shape;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++shape.containers;
      shape.depth = std::max(shape.depth, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return shape;
}

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Show(const Json& value) {
  constexpr size_t kShownMax = 60;
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  if (value.is_object()) return "an object";
  std::string text;
  if (value.is_string() && value.get_ref<const std::string&>().size() > kShownMax) {
    return "a string of " + std::to_string(value.get_ref<const std::string&>().size()) + " bytes";
  }
  return Dump(value);
}

void Refuse(JsonBody& body, const std::string& field, const std::string& expected,
            const Json& got) {
  body.Fail(field, "invalid_value", "'" + field + "' must be " + expected + ", got " + Show(got));
}

void WrongType(JsonBody& body, const std::string& field, const std::string& expected,
               const Json& got) {
  body.Fail(field, "invalid_type", "'" + field + "' must be " + expected + ", got " + Show(got));
}

}  // namespace sixfold::gateway
