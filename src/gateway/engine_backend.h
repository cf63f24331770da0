// The engine of this process behind the gateway's interface. Header only, so that the gateway links
// without an engine.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "gateway/backend.h"

namespace sixfold::gateway {

// Thread rule: as Backend. `engine` outlives it.
class EngineBackend final : public Backend {
 public:
  // Of the model that the engine runs: as the methods of Backend.
  struct Fingerprint {
    std::function<std::optional<Result<std::string>>()> poll;
    std::function<void()> hurry;
  };
  EngineBackend(Engine& engine, Fingerprint fingerprint)
      : engine_(engine), fingerprint_(std::move(fingerprint)) {}

  Result<RequestId> Submit(Request request, Sink sink) override {
    return engine_.Submit(std::move(request), std::move(sink));
  }
  void Abort(RequestId id) override { engine_.Abort(id); }
  void AbortChoice(RequestId id, int choice) override { engine_.AbortChoice(id, choice); }
  EngineStats stats() const override { return engine_.stats(); }
  Status health() const override { return engine_.health(); }
  int64_t max_model_len() const override { return engine_.options().max_model_len; }
  int64_t vocab() const override { return engine_.vocab(); }
  std::optional<Result<std::string>> fingerprint() const override { return fingerprint_.poll(); }
  void HurryFingerprint() override { fingerprint_.hurry(); }

 private:
  Engine& engine_;
  const Fingerprint fingerprint_;
};

}  // namespace sixfold::gateway
