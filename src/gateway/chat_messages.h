// `messages` of a chat request, as the chat template takes them.
#pragma once

#include <string>

#include "gateway/json_values.h"

namespace sixfold::gateway {

// See JsonBody::Messages. `value` is what stands under `field`, or nullptr.
std::string ChatMessagesJson(JsonBody& body, const char* field, const Json* value);

}  // namespace sixfold::gateway
