#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace sixfold {

namespace internal {

void CheckFailed(const char* file, int line, const char* expression, const std::string& detail) {
  std::fprintf(stderr, "bug: %s:%d: CHECK(%s) failed%s%s\n", file, line, expression, detail.empty() ? "" : ": ",
               detail.c_str());
  std::abort();
}

}  // namespace internal

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kInvalidFile: return "bad file";
    case StatusCode::kOutOfMemory: return "out of memory";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kContextLength: return "context length exceeded";
    case StatusCode::kOverloaded: return "overloaded";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kDeadline: return "deadline exceeded";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

std::string Status::ToString() const {
  return ok() ? "ok" : std::string(StatusCodeName(code_)) + ": " + message_;
}

Status Status::WithContext(const std::string& context) const {
  return ok() ? *this : Status(code_, context + ": " + message_);
}

}  // namespace sixfold
