// The engine of this process behind the gateway's interface. Header only, so that the gateway links
// without an engine.
#pragma once

#include <string>
#include <utility>

#include "engine/engine.h"
#include "gateway/backend.h"

namespace sixfold::gateway {

// Thread rule: as Backend. `engine` outlives it.
class EngineBackend final : public Backend {
 public:
  // fingerprint: of the model that the engine runs.
  EngineBackend(Engine& engine, std::string fingerprint)
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
  std::string fingerprint() const override { return fingerprint_; }

 private:
  Engine& engine_;
  const std::string fingerprint_;
};

}  // namespace sixfold::gateway
