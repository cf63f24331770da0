// A client that writes down what it is told. Checks what every sink is promised: one final Delta a choice, nothing
// after.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "base/check.h"
#include "engine/request.h"

namespace sixfold {

// Thread rule: Sink from the step thread, the rest from any thread. Must outlive the request.
class Recorder {
 public:
  struct Choice {
    std::vector<TokenId> tokens;
    std::vector<SampledToken> sampled;
    std::optional<FinishReason> finish;
    std::optional<TokenId> stop_token;
    Status error;
  };

  explicit Recorder(int n = 1) : choices_(n), unfinished_(n) {}

  std::function<void(Delta)> Sink() {
    return [this](Delta delta) { Take(std::move(delta)); };
  }
  // False when a choice is still without its end after the deadline.
  bool Wait(std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, [&] { return unfinished_ == 0; });
  }
  bool WaitForTokens(size_t count, std::chrono::milliseconds deadline = std::chrono::seconds(30)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, deadline, [&] { return choices_[0].tokens.size() >= count || unfinished_ == 0; });
  }
  Choice choice(int c = 0) const {
    const std::lock_guard lock(mutex_);
    return choices_[c];
  }
  uint64_t seed() const {
    const std::lock_guard lock(mutex_);
    return seed_;
  }

 private:
  void Take(Delta delta) {
    const std::lock_guard lock(mutex_);
    Choice& c = choices_.at(delta.choice);
    SF_CHECK(!c.finish.has_value());
    seed_ = delta.seed;
    for (SampledToken& t : delta.tokens) {
      c.tokens.push_back(t.token);
      c.sampled.push_back(std::move(t));
    }
    c.finish = delta.finish;
    c.stop_token = delta.stop_token;
    c.error = delta.error;
    if (delta.finish) --unfinished_;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Choice> choices_;
  int unfinished_;
  uint64_t seed_ = 0;
};

}  // namespace sixfold
