// Expected failures travel as values: Status says what went wrong and what to do about it, Result<T> carries a value
// or a Status. Bugs go to SF_CHECK (base/check.h) instead; normal outcomes (no free block) are optionals or enums.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace sixfold {

// What kind of failure it was; apps/ maps it once to an exit code, gateway once to an HTTP status.
enum class StatusCode {
  kOk,
  kInvalidArgument,   // the caller asked for something that cannot be (exit 2, HTTP 400)
  kInvalidFile,       // a file is missing, damaged or does not fit (exit 3)
  kOutOfMemory,       // not enough memory for what was asked (exit 4)
  kNotFound,          // a name that is not known (exit 2, HTTP 404)
  kContextLength,     // a prompt that does not fit the context (exit 2, HTTP 400 context_length_exceeded)
  kOverloaded,        // a bounded queue is full (HTTP 429)
  kUnavailable,       // shutting down or not ready (HTTP 503)
  kCancelled,         // the caller went away
  kDeadline,          // a wait ran out of time
  kInternal,          // anything else (exit 1, HTTP 500)
};

const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "kind: message", for logs.
  std::string ToString() const;
  // The same failure with "context: " before its message.
  Status WithContext(const std::string& context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status InvalidFile(std::string m) { return {StatusCode::kInvalidFile, std::move(m)}; }
inline Status OutOfMemory(std::string m) { return {StatusCode::kOutOfMemory, std::move(m)}; }
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) { SF_CHECK(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { SF_CHECK(ok()); return *value_; }
  const T& value() const& { SF_CHECK(ok()); return *value_; }
  T&& value() && { SF_CHECK(ok()); return std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace sixfold

// Leaves the function with the failure, if there is one.
#define SF_RETURN_IF_ERROR(expr)                                \
  do {                                                          \
    if (::sixfold::Status sf_status_ = (expr); !sf_status_.ok()) return sf_status_; \
  } while (false)

#define SF_CONCAT_INNER_(a, b) a##b
#define SF_CONCAT_(a, b) SF_CONCAT_INNER_(a, b)
// SF_ASSIGN_OR_RETURN(auto x, F()): x is F's value, or the function returns F's failure.
#define SF_ASSIGN_OR_RETURN(lhs, expr) SF_ASSIGN_OR_RETURN_IMPL_(SF_CONCAT_(sf_result_, __LINE__), lhs, expr)
#define SF_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return tmp.status();             \
  lhs = std::move(tmp).value()
