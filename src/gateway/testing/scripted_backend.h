// The one fake of Backend: replays given token ids through the real gateway, one token a choice and
// step, with an engine's limits (places, queue, context) and its answers to aborts.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gateway/backend.h"

namespace sixfold::gateway {

struct ScriptOptions {
  int64_t max_model_len = 4096;
  int64_t vocab = 260;
  TokenId eos = 257;
  int max_running = 64;   // choices
  int max_queued = 1024;  // requests waiting; beyond it kOverloaded
  std::chrono::microseconds step_time{500};
  // The tokens of a choice, without the end of sequence, which follows them. Must be set.
  std::function<std::vector<TokenId>(const Request& request, int choice, uint64_t seed)> script;
  // Empty: always "fp_scripted".
  std::function<std::optional<Result<std::string>>()> fingerprint;
  // When a token was sampled; empty: when it is given.
  std::function<std::chrono::steady_clock::time_point(int choice, int64_t position)> sampled_at;
  // Called before each token; a failure ends the choice with kError. May be empty.
  std::function<Status(const Request& request, int choice, int64_t position)> fault;
};

// Thread rule: as Backend. Sinks are called from the step thread, without a lock held.
class ScriptedBackend final : public Backend {
 public:
  explicit ScriptedBackend(ScriptOptions options);
  ~ScriptedBackend() override;  // aborts what runs

  Result<RequestId> Submit(Request request, Sink sink) override;
  void Abort(RequestId id) override;
  void AbortChoice(RequestId id, int choice) override;
  EngineStats stats() const override;
  Status health() const override { return OkStatus(); }
  int64_t max_model_len() const override { return options_.max_model_len; }
  int64_t vocab() const override { return options_.vocab; }
  std::optional<Result<std::string>> fingerprint() const override {
    if (options_.fingerprint) return options_.fingerprint();
    return std::string("fp_scripted");
  }
  void HurryFingerprint() override { hurried_ = true; }
  bool hurried() const { return hurried_; }

  uint64_t submitted() const;
  // Sampling of the last accepted request.
  SamplingParams last_sampling() const;
  std::vector<TokenId> last_prompt() const;
  // Waits until so many requests have been accepted since the start.
  bool WaitSubmitted(uint64_t count, std::chrono::milliseconds timeout) const;
  // Waits until nothing runs or waits; false when the time is over first.
  bool WaitIdle(std::chrono::milliseconds timeout) const;

 private:
  struct Choice {
    std::vector<TokenId> script;
    int64_t position = 0;  // tokens given
    bool running = false;
    bool abort = false;
  };
  struct Active {
    Request request;
    Sink sink;
    uint64_t seed = 0;
    std::map<int, Choice> choices;  // unfinished ones
  };
  struct News {
    Sink sink;
    Delta delta;
  };

  void Loop();
  void Step(std::vector<News>& news);
  Delta NextDelta(Active& active, int index, Choice& choice);
  void Count(FinishReason reason);

  const ScriptOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<uint64_t, Active> active_;  // by request id: oldest first
  EngineStats stats_;
  uint64_t next_id_ = 1;
  SamplingParams last_sampling_;
  std::vector<TokenId> last_prompt_;
  bool stop_ = false;
  bool calling_sinks_ = false;
  std::atomic<bool> hurried_ = false;
  std::thread thread_;
};

}  // namespace sixfold::gateway
