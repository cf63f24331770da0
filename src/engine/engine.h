// The narrow interface through which every client (gateway, command line, later a router on another machine) reaches a
// serving instance.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/expert_load.h"
#include "engine/request.h"
#include "model/model.h"

namespace sixfold {

class StepModel;

struct EngineOptions {
  int64_t max_model_len = 0;             // 0: the model's maximum, or what the K/V memory holds if that is less
  int max_num_seqs = 64;                 // choices that run together on one data-parallel replica
  int64_t max_num_batched_tokens = 512;  // rows of one step of one replica
  int64_t kv_cache_memory_bytes = 0;     // of each rank. 0: 1 GiB or its part of 40 % of the available memory,
                                         // whichever is less
  int max_queued_requests = 1024;        // choices waiting beside those that run; more: kOverloaded
  int64_t max_prefill_chunk_tokens = 0;  // rows of one sequence in a step; 0: up to max_num_batched_tokens
  // Passes for nobody before the first request, which then finds weights, workspaces and kernels as later ones do. They
  // count nowhere.
  enum class WarmUp : uint8_t { kNo, kYes } warm_up = WarmUp::kNo;
  std::vector<TokenId> eos_ids;          // end of sequence beside the model's own (generation_config.json's)
};

struct ReplicaStats {
  int running = 0;
  int64_t blocks_total = 0, blocks_used = 0;
};

// A reading of the engine's counters, over all replicas; gauges are of now, totals since start. /metrics is made from
// this.
struct EngineStats {
  int running = 0, waiting = 0;
  int64_t blocks_total = 0, blocks_used = 0;
  uint64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
  uint64_t finished_stop = 0, finished_length = 0, aborted = 0, failed = 0;
  std::vector<ReplicaStats> replicas;
  ExpertLoad experts;
};

// Runs the step loop in a thread of its own; an idle engine sleeps. Thread rule: every public method may be called from
// any thread. Sinks are called from the step thread, possibly before Submit has returned; they must not block, throw,
// or call back into the engine other than Abort, and what they refer to must live until the last choice's final Delta.
class Engine {
 public:
  using Sink = std::function<void(Delta)>;

  // Errors: kInvalidArgument and kOutOfMemory name the flag and the values that would work (engine/memory.h).
  static Result<std::unique_ptr<Engine>> Start(std::unique_ptr<Model> model, const EngineOptions& options);
  // Both return when the warm-up, if one is asked for, is over; its failure is theirs.
  // The same over anything that computes steps: a fake, a recorder, later a group of ranks.
  static Result<std::unique_ptr<Engine>> StartWith(std::unique_ptr<StepModel> model, const EngineOptions& options);
  ~Engine();  // aborts what runs; every sink has had its final Deltas when it returns

  const Model& model() const;            // of an engine made by Start
  const EngineOptions& options() const;  // with the zeros resolved
  int64_t vocab() const;

  // Errors: kContextLength (prompt does not leave room for one token), kInvalidArgument, kOverloaded, kUnavailable.
  // max_tokens is cut to what the context leaves. The sink gets one final Delta a choice, whatever happens.
  Result<RequestId> Submit(Request request, Sink sink);

  // Ends all choices of a request, or one. Its blocks are free before the next step begins; each ended choice gets a
  // final Delta with kAborted. Unknown ids are ignored.
  void Abort(RequestId id);
  void AbortChoice(RequestId id, int choice);

  EngineStats stats() const;

  // OK, or why this engine will never compute again (kUnavailable, the model's words): a pass has failed, or the model
  // is known to be broken. After a failed pass each living choice has had a final Delta with kError and this status,
  // and the step thread has ended; Submit returns the status.
  Status health() const;

  // No new requests; returns when all have finished or the deadline passes (then they are aborted: kDeadline). Of an
  // engine that has failed: returns health() at once.
  Status Drain(std::chrono::milliseconds deadline);

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
  const Model* model_ = nullptr;
};

}  // namespace sixfold
