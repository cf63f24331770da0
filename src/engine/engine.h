// The narrow interface through which every client (gateway, command line, later a router on another machine) reaches a
// serving instance.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/request.h"
#include "model/model.h"

namespace sixfold {

struct EngineOptions {
  int64_t max_model_len = 0;             // 0: the model's maximum, or what the K/V memory holds if that is less
  int max_num_seqs = 64;                 // choices that run together
  int64_t max_num_batched_tokens = 512;  // rows of one step
  int64_t kv_cache_memory_bytes = 0;     // 0: 1 GiB or 40 % of the available memory, whichever is less
  int max_queued_requests = 1024;        // waiting beyond this: kOverloaded
};

// A reading of the engine's counters; gauges are of now, totals since start. /metrics is made from this.
struct EngineStats {
  int running = 0, waiting = 0;
  int64_t blocks_total = 0, blocks_used = 0;
  uint64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
  uint64_t finished_stop = 0, finished_length = 0, aborted = 0, failed = 0;
};

// Runs the step loop in a thread of its own. Thread rule: every public method may be called from any thread. Sinks are
// called from the step thread, must not block, and must not call back into the engine other than Abort.
class Engine {
 public:
  using Sink = std::function<void(Delta)>;

  static Result<std::unique_ptr<Engine>> Start(std::unique_ptr<Model> model, const EngineOptions& options);
  ~Engine();  // aborts what runs

  const Model& model() const;
  const EngineOptions& options() const;  // with the zeros resolved

  // Errors: kContextLength (prompt does not leave room for one token), kInvalidArgument, kOverloaded, kUnavailable.
  // max_tokens is cut to what the context leaves. The sink gets one final Delta a choice, whatever happens.
  Result<RequestId> Submit(Request request, Sink sink);

  // Ends all choices of a request, or one. Its blocks are free before the next step begins; each ended choice gets a
  // final Delta with kAborted. Unknown ids are ignored.
  void Abort(RequestId id);
  void AbortChoice(RequestId id, int choice);

  EngineStats stats() const;
  // No new requests; returns when all have finished or the deadline passes (then they are aborted).
  Status Drain(std::chrono::milliseconds deadline);

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold
