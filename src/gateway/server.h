// The OpenAI-compatible server over one backend: routes, keys, metrics, draining.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "gateway/backend.h"
#include "gateway/http_server.h"
#include "gateway/text_codec.h"
#include "model/config.h"

namespace sixfold::gateway {

struct ServerOptions {
  HttpOptions http;
  std::vector<std::string> served_model_names;  // at least one; answers carry the first
  std::string root;                             // where the weights came from; "": the first name
  std::string api_key;                          // "": none is asked for
  enum class MetricsAccess : uint8_t { kOpen, kWithKey } metrics_access = MetricsAccess::kOpen;
  std::string version = "unknown";
  std::string cors_origin = "*";  // "": no CORS headers
  GenerationDefaults defaults;    // of the model's generation_config.json
  int64_t output_bytes_max =
      1 << 20;  // unread output of one stream, beyond it the client is dropped
  int64_t answer_bytes_max = 64 << 20;        // of one answer that is not streamed; beyond it 400
  int64_t held_answer_bytes_max = 256 << 20;  // of all of them together; beyond it 429
  std::chrono::milliseconds drain_deadline{30'000};
  // After the backend has failed: how long /health and new requests are still answered, with 503
  // and the reason, before the server ends.
  std::chrono::milliseconds failure_linger{2'000};
  // A line a request, and what happens to the server; null: nowhere. Outlives the server.
  Log* log = nullptr;
  // A stream that has had nothing for so long (a long prompt is being computed) gets a comment
  // line, so that nothing between client and server takes it for dead.
  std::chrono::milliseconds keep_alive{15'000};
};

// Thread rule: any thread.
class Server {
 public:
  // Listens and serves until stopped. `backend` and `codec` outlive the server. Errors:
  // kUnavailable (port in use), kInvalidArgument (host, no name).
  static Result<std::unique_ptr<Server>> Start(ServerOptions options, Backend& backend,
                                               const TextCodec& codec);
  ~Server();  // aborts what runs

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8000"

  // First call: new work is refused with 503, what runs may finish within drain_deadline, then the
  // server ends. Second call: what runs is aborted at once. With http.handle_signals SIGINT and
  // SIGTERM do the same.
  void RequestStop();
  // Returns when the server has ended: it was told to, or the backend has failed (Backend::health
  // says so).
  void Wait();
  // After Wait: answers that a second RequestStop or signal has cut.
  int64_t answers_cut() const;

 private:
  Server();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold::gateway
