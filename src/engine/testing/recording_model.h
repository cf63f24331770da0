// Writes down every row of logits by the tokens that led to it, and compares it with what the same tokens gave before.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/step_model.h"

namespace sixfold {

// Logits of reproducible arithmetic are a function of the tokens up to their position and of nothing else; a record
// outlives engines, so that runs with other batches, chunks, threads and ISAs can be held against each other.
// Thread rule: any thread.
class LogitRecord {
 public:
  // `prefix` ends with the token of the row.
  void Add(const std::vector<TokenId>& prefix, std::span<const float> row);

  int64_t prefixes() const;     // different ones seen
  int64_t comparisons() const;  // rows whose prefix had been seen before
  int64_t mismatches() const;   // of those, rows of other bits

 private:
  mutable std::mutex mutex_;
  std::map<std::vector<TokenId>, std::vector<float>> rows_;
  int64_t comparisons_ = 0;
  int64_t mismatches_ = 0;
};

// Asks `inner` for the logits of all rows, records them, and hands on those that were asked for.
std::unique_ptr<StepModel> MakeRecordingModel(std::unique_ptr<StepModel> inner, LogitRecord& record);

}  // namespace sixfold
