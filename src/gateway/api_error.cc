#include "gateway/api_error.h"

#include "gateway/json_writer.h"

namespace sixfold::gateway {

ApiError ErrorFromStatus(const Status& status) {
  ApiError error{.message = status.message()};
  switch (status.code()) {
    case StatusCode::kInvalidArgument: error.code = "invalid_value"; break;
    case StatusCode::kContextLength: error.code = "context_length_exceeded"; break;
    case StatusCode::kNotFound:
      error.status = 404;
      error.code = "not_found";
      break;
    case StatusCode::kOverloaded:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "overloaded";
      break;
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
    case StatusCode::kDeadline:
      error.status = 503;
      error.type = "service_unavailable_error";
      error.code = "unavailable";
      break;
    default:
      error.status = 500;
      error.type = "internal_server_error";
      error.code = "internal_error";
  }
  return error;
}

std::string ErrorBody(const ApiError& error) {
  JsonWriter out;
  const auto text_or_null = [&out](const std::string& text) {
    text.empty() ? out.Null() : out.String(text);
  };
  out.BeginObject().Key("error").BeginObject();
  out.Key("message").String(error.message);
  out.Key("type").String(error.type);
  out.Key("param");
  text_or_null(error.param);
  out.Key("code");
  text_or_null(error.code);
  out.EndObject().EndObject();
  return std::move(out).Take();
}

}  // namespace sixfold::gateway
