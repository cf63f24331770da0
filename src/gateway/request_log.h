// What the log tells of one request: numbers, names and outcomes, never what was asked or answered,
// nor a key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "gateway/api_error.h"

namespace sixfold::gateway {

struct RequestRecord {
  std::string method = "POST";
  std::string path;
  std::string id;         // ours, as the answer has it: "chatcmpl-…"
  std::string client_id;  // the client's x-request-id
  std::string model;      // as the client named it; "": did not
  int status = 200;       // 499, as proxies have it, when the client left before any
  // Of the choices, each once, in order: "stop", "length", "abort", "error".
  std::vector<std::string> finish_reasons;
  // Missing where it did not come so far. Tokens are sums over prompts and choices.
  std::optional<int64_t> prompt_tokens, cached_tokens, completion_tokens;
  // Queue: from the backend's acceptance to its first step for it. Time to first token: from the
  // request's last byte. Time per output token: after the first, mean over the choices.
  std::optional<double> queue_ms, ttft_ms, tpot_ms;
  std::optional<double> total_ms;
  bool stream = false;
  bool client_gone = false;
  bool slow_client = false;  // dropped, because it did not read
  std::string ignored;       // names of fields that are not known
  std::optional<ApiError> error;
};

// Refusals of 5xx are warnings; what is asked for every few seconds by probes (GETs that succeed)
// is for debugging.
LogLine RequestLine(const RequestRecord& record);

}  // namespace sixfold::gateway
