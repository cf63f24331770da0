// The two places where the engine meets a loaded Model; all else goes through StepModel.
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/expert_load.h"
#include "engine/step_model.h"
#include "kv/storage.h"
#include "model/model.h"

namespace sixfold {
namespace {

class ModelAdapter : public StepModel {
 public:
  explicit ModelAdapter(std::unique_ptr<Model> model) : model_(std::move(model)) {}

  KvGeometry kv_geometry() const override { return model_->kv_geometry(); }
  int64_t vocab() const override { return model_->config().vocab; }
  int64_t max_positions() const override { return model_->config().max_positions; }
  std::span<const TokenId> eos_ids() const override { return model_->config().eos_ids; }

  Status AllocateKv(int32_t blocks) override {
    SF_ASSIGN_OR_RETURN(kv_, KvStorage::Create(model_->kv_geometry(), blocks));
    return OkStatus();
  }

  Result<std::span<const float>> Forward(std::span<const StepBatch> batches) override {
    SF_CHECK_EQ(batches.size(), 1u);
    SF_CHECK(kv_.has_value());
    const std::span<const float> logits = model_->Forward(batches[0], *kv_);
    if (recording_) routes_.replicas = {model_->recorded_routes().experts};
    if (model_->config().moe.experts > 0) {
      ExpertCounters counters = model_->expert_counters();
      const std::lock_guard lock(mutex_);
      expert_tokens_ = std::move(counters.tokens);
    }
    return logits;
  }

  void RecordRoutes(bool record) override {
    recording_ = record;
    model_->RecordRoutes(record ? Model::Recording::kOn : Model::Recording::kOff);
  }
  const StepRoutes& last_routes() const override { return routes_; }
  void ForceRoutes(StepRoutes routes) override {
    model_->ForceRoutes({.top_k = model_->config().moe.top_k, .experts = std::move(routes.replicas[0])});
  }
  Status ResetCounters() override {
    const std::lock_guard lock(mutex_);
    uncounted_tokens_ = expert_tokens_;
    return OkStatus();
  }
  ExpertLoad expert_load() const override {
    std::vector<int64_t> tokens;
    {
      const std::lock_guard lock(mutex_);
      tokens = expert_tokens_;
      for (size_t i = 0; i < uncounted_tokens_.size(); ++i) tokens[i] -= uncounted_tokens_[i];
    }
    return tokens.empty() ? EmptyLoad(model_->layout()) : LoadOf(model_->layout(), std::move(tokens));
  }

 private:
  const std::unique_ptr<Model> model_;
  std::optional<KvStorage> kv_;
  bool recording_ = false;
  StepRoutes routes_;
  mutable std::mutex mutex_;
  std::vector<int64_t> expert_tokens_;     // guarded; empty before the first pass
  std::vector<int64_t> uncounted_tokens_;  // guarded; those before ResetCounters
};

}  // namespace

std::unique_ptr<StepModel> AdaptModel(std::unique_ptr<Model> model) {
  return std::make_unique<ModelAdapter>(std::move(model));
}

Result<std::unique_ptr<Engine>> Engine::Start(std::unique_ptr<Model> model, const EngineOptions& options) {
  const Model* loaded = model.get();
  SF_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, StartWith(AdaptModel(std::move(model)), options));
  engine->model_ = loaded;
  return engine;
}

}  // namespace sixfold
