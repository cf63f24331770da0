// What the gateway needs from whatever runs the model: an engine in this process
// (engine_backend.h), a script in tests (testing/scripted_backend.h), later an instance on another
// machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace sixfold::gateway {

// Thread rule: every method may be called from any thread; sinks are called from a thread of the
// backend and only queue what they get.
class Backend {
 public:
  using Sink = std::function<void(Delta)>;
  virtual ~Backend() = default;

  // As Engine::Submit, Abort, AbortChoice and stats.
  virtual Result<RequestId> Submit(Request request, Sink sink) = 0;
  virtual void Abort(RequestId id) = 0;
  virtual void AbortChoice(RequestId id, int choice) = 0;
  virtual EngineStats stats() const = 0;
  // As Engine::health: OK, or why nothing will be answered any more.
  virtual Status health() const = 0;

  virtual int64_t max_model_len() const = 0;  // prompt and answer together, tokens
  virtual int64_t vocab() const = 0;
  // Of the model; nullopt while its weights are being hashed, an error when they cannot be.
  virtual std::optional<Result<std::string>> fingerprint() const = 0;
  // Somebody waits for it.
  virtual void HurryFingerprint() {}
};

}  // namespace sixfold::gateway
