// What the readers of request bodies share: values of the JSON library, shown and refused. For .cc
// files only.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "gateway/indexed_map.h"
#include "gateway/json_body.h"

namespace sixfold::gateway {

// Keys keep their order, for what templates print.
using Json = nlohmann::basic_json<IndexedMap>;

// What a text would cost as a tree, told before anything is built: nlohmann's parser does not
// recurse, but its writer does, and a body of "[{},{},…" takes 30 times its bytes.
struct Shape {
  int depth = 0;
  int64_t containers = 0;
};
Shape ShapeOf(std::string_view text);

std::string Dump(const Json& value);

// For messages: short, and without walking a large value.
std::string Show(const Json& value);

// Errors of one field: a value out of range, and one of another type.
void Refuse(JsonBody& body, const std::string& field, const std::string& expected, const Json& got);
void WrongType(JsonBody& body, const std::string& field, const std::string& expected,
               const Json& got);

}  // namespace sixfold::gateway
