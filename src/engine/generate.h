// One request, asked and answered in the caller's thread: for the command line and for tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace sixfold {

struct GeneratedChoice {
  std::vector<SampledToken> tokens;  // a stop token included
  FinishReason finish = FinishReason::kAborted;
  std::optional<TokenId> stop_token;
};

struct GenerateOutput {
  std::vector<GeneratedChoice> choices;  // [n]
  uint64_t seed = 0;
};

enum class AfterDelta : uint8_t { kContinue, kEndChoice };  // kEndChoice: a stop string was seen, Ctrl-C was pressed

struct GenerateOptions {
  // Longest wait for the next token, counted from the last one; the prompt must be computed within it.
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  // Asked some 20 times a second while no token comes, in the caller's thread; true ends the choices that still run, also
  // before their first token. May be empty.
  std::function<bool()> stop;
};

// Called in the caller's thread with each Delta in order; may be empty.
using OnDelta = std::function<AfterDelta(const Delta&)>;

// Errors: those of Submit; kDeadline; the first choice's error if one failed. A choice ended by on_delta has kAborted,
// or what it came to by itself first; tokens that were on their way then are left out.
Result<GenerateOutput> Generate(Engine& engine, Request request, const OnDelta& on_delta,
                                const GenerateOptions& options = {});

}  // namespace sixfold
