// A model without arithmetic: it stores each token and its position in the K/V pages that the block table names, and
// its logits are a hash of all that it reads back. A wrong block table, position, chunk or recomputation changes the
// answer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/step_model.h"

namespace sixfold {

// Stops a FakeModel before each pass, so that a test can act at a known point. Thread rule: any thread.
class StepGate {
 public:
  void Close();
  void Open();
  // Waits until the model stands at the closed gate; false after 10 s.
  bool WaitUntilBlocked();
  void Pass();  // the model's side; goes on after 10 s whatever happens

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  bool blocked_ = false;
};

inline constexpr const char* kFakeFailure = "rank 3 waited 30 s for rank 1 (all-reduce, layer 7, step 12)";

struct FakeModelOptions {
  int replicas = 1;
  int64_t vocab = 64;
  int64_t max_positions = 4096;
  std::vector<TokenId> eos_ids = {0};
  float spread = 4.0f;                   // logits lie in [-spread, spread)
  float eos_bonus = 0.0f;                // added to the logit of token 0
  std::optional<TokenId> nan_after;      // all logits are NaN where the last token is this one
  StepGate* gate = nullptr;              // borrowed; may be absent
  std::atomic<int64_t>* rows = nullptr;  // borrowed: counts rows computed; may be absent
  std::optional<int64_t> fail_at_pass;   // this one (from 0) fails with kDeadline and kFakeFailure; a later one is a bug
  const std::atomic<bool>* dead = nullptr;  // borrowed: health() fails with kFakeFailure when set; may be absent
};

// The same logits that FakeModel gives after `tokens`, computed without pages: the oracle.
std::vector<float> FakeLogits(const FakeModelOptions& options, std::span<const TokenId> tokens);

// Reading back something else than was written at a position is a failed check in the calling test's process.
std::unique_ptr<StepModel> MakeFakeModel(const FakeModelOptions& options);

}  // namespace sixfold
