// Where clients' threads meet the step thread: requests and aborts go in, the step thread takes them out between steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "engine/request.h"
#include "engine/step.h"

namespace sixfold {

// A request from Submit to the last Delta of its last choice. Owns what its sequences point to, so it does not move.
struct ActiveRequest {
  Request request;
  std::function<void(Delta)> sink;
  std::vector<TokenId> stop_ids;  // a sampled one ends a choice
  std::vector<TokenId> end_ids;   // of those and end-of-sequence, whether ignored or not; masked before min_tokens
  std::vector<Sequence> choices;  // [n]
  int unfinished = 0;
};

// Bounded by count of living choices; the abort set holds living ones only. Thread rule: any thread.
class Inbox {
 public:
  static constexpr int kAllChoices = -1;
  using AbortSet = std::set<std::pair<RequestId, int>>;  // request, choice or kAllChoices

  // What came in since the last Take.
  struct Mail {
    std::vector<std::unique_ptr<ActiveRequest>> arrivals;  // oldest first
    AbortSet aborts;
    bool stop = false;
  };
  enum class WhenEmpty : uint8_t { kReturn, kSleep };

  explicit Inbox(int64_t choices_max) : choices_max_(choices_max) {}

  // Gives the request its id. kOverloaded when choices_max are alive, kUnavailable after Close, Stop or Fail.
  Result<RequestId> Submit(std::unique_ptr<ActiveRequest> request);
  void Abort(RequestId id, int choice);

  // Step thread: what has come in. kSleep sleeps until there is something; it is the one wait without a deadline, since
  // nobody waits for an idle engine.
  void Take(WhenEmpty when_empty, Mail& mail);
  // Step thread: one choice has ended.
  void FinishChoice(RequestId id);

  void Close();  // no new requests
  void Stop();   // and the step thread shall end
  // Step thread: no new requests, which are told why.
  void Fail(const Status& why);
  // Step thread: it takes no more mail, and all sinks have returned.
  void End();
  // True when nothing is alive and the step thread sleeps or has ended, so that all sinks have returned.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);
  void AbortAll();
  int64_t choices_alive() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable mail_came_;
  std::condition_variable became_idle_;
  const int64_t choices_max_;
  uint64_t last_id_ = 0;
  int64_t choices_alive_ = 0;
  std::unordered_map<RequestId, int> alive_;  // choices alive of each request
  Mail mail_;
  Status failure_;
  bool closed_ = false;
  bool sleeping_ = false;
  bool ended_ = false;
};

}  // namespace sixfold
