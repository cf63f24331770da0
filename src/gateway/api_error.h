// A refusal in OpenAI's form, and how failures of the engine map to one.
#pragma once

#include <string>

#include "base/status.h"

namespace sixfold::gateway {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param;  // the field at fault; "": null on the wire
  std::string code;   // "": null on the wire
};

// The one place where a StatusCode becomes an HTTP status.
ApiError ErrorFromStatus(const Status& status);
// {"error":{"message","type","param","code"}}
std::string ErrorBody(const ApiError& error);

}  // namespace sixfold::gateway
