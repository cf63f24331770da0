// A run of tokens through the model from an empty K/V memory, outside the engine: for `logits` and
// `perplexity`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "apps/routes_file.h"
#include "base/ids.h"
#include "base/status.h"
#include "engine/step_model.h"

namespace sixfold::apps {

// Thread rule: one thread, which is then the model's step thread.
class Prefill {
 public:
  // Logits of positions [first_position, first_position + rows), row-major [rows][vocab].
  using OnLogits = std::function<Status(int64_t first_position, std::span<const float> logits)>;

  // K/V memory for `tokens_max` tokens; kOutOfMemory when there is not enough. chunk: rows of one
  // pass.
  // More than one replica: the others are idle.
  static Result<std::unique_ptr<Prefill>> Create(StepModel& model, int64_t tokens_max,
                                                 int64_t chunk);

  // Tokens are in the vocabulary and at most tokens_max. Hands over the logits from position
  // `logits_from` on, in order; ends early when on_logits fails.
  Status Run(std::span<const TokenId> tokens, int64_t logits_from, const OnLogits& on_logits);

  // Of the runs that follow: where the experts of all tokens are put, and where they are taken from. Null: neither.
  void Record(TokenRoutes* routes);
  void Replay(const TokenRoutes* routes, int64_t tokens) {
    replay_ = routes;
    replay_tokens_ = tokens;
  }

 private:
  void ForceRows(int64_t begin, int64_t end);

  Prefill(StepModel& model, int64_t blocks, int64_t chunk)
      : model_(model), placement_(model.kv_placement()), blocks_(blocks), chunk_(chunk) {}

  StepModel& model_;
  const KvPlacement placement_;
  int64_t blocks_;
  int64_t chunk_;
  TokenRoutes* record_ = nullptr;
  const TokenRoutes* replay_ = nullptr;
  int64_t replay_tokens_ = 0;
};

}  // namespace sixfold::apps
