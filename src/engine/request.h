// Values on the arrows between a client of the engine and the engine: Request in, Delta out.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace sixfold {

// Every field is already checked against its range (ValidateSampling); the defaults mean "no effect".
struct SamplingParams {
  double temperature = 1.0;              // [0, 2]; 0: greedy
  double top_p = 1.0;                    // (0, 1]
  int64_t top_k = 0;                     // 0 or -1: all
  double min_p = 0.0;                    // [0, 1]
  double repetition_penalty = 1.0;  // positive, in fp32 (model/config.h); over prompt and answer
  double presence_penalty = 0.0;         // [-2, 2], over the answer
  double frequency_penalty = 0.0;        // [-2, 2]
  std::map<TokenId, double> logit_bias;  // added to the logit; [-100, 100]
  std::optional<uint64_t> seed;          // drawn at admission when absent, and reported
  int n = 1;                             // [1, 128] answers
  int64_t max_tokens = 16;               // >= 1
  int64_t min_tokens = 0;                // end-of-sequence and stop tokens are not sampled before
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;
  int logprobs = -1;  // -1: none; k >= 0: the sampled token's and the k most likely (<= 20)
};

// InvalidArgument naming field and range; vocab bounds token ids.
Status ValidateSampling(const SamplingParams& sampling, int64_t vocab);

struct Request {
  RequestId id;                 // given by Engine::Submit
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
};

enum class FinishReason : uint8_t { kStop, kLength, kAborted, kError };

struct TokenLogprobs {
  float logprob = 0;                           // natural log, of the model's distribution before penalties
  std::vector<std::pair<TokenId, float>> top;  // most likely first
};

struct SampledToken {
  TokenId token = 0;
  std::optional<TokenLogprobs> logprobs;  // when the request asked
  // Read on the step thread. Speeds and latencies are made from this: Deltas may reach their reader in bunches.
  std::chrono::steady_clock::time_point sampled_at{};
};

// News of one choice of a request. The last Delta of a choice has `finish`; nothing follows it.
struct Delta {
  RequestId request;
  int choice = 0;
  std::vector<SampledToken> tokens;  // a stop token is included (with finish = kStop)
  std::optional<FinishReason> finish;
  std::optional<TokenId> stop_token;  // the token that ended it, when finish is kStop
  Status error;                       // when finish is kError
  uint64_t seed = 0;                  // the seed in force
  // When the first step that computes something of the choice began; nullopt: none has.
  std::optional<std::chrono::steady_clock::time_point> started;
};

}  // namespace sixfold
