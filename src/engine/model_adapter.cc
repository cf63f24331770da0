// The two places where the engine meets a loaded Model; all else goes through StepModel.
#include <optional>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
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
    return model_->Forward(batches[0], *kv_);
  }

 private:
  const std::unique_ptr<Model> model_;
  std::optional<KvStorage> kv_;
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
