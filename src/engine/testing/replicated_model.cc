#include "engine/testing/replicated_model.h"

#include <utility>

namespace sixfold {
namespace {

class ReplicatedModel : public StepModel {
 public:
  explicit ReplicatedModel(std::vector<std::unique_ptr<StepModel>> replicas)
      : replicas_(std::move(replicas)) {}

  int replicas() const override { return static_cast<int>(replicas_.size()); }
  int ranks_here() const override { return replicas(); }
  KvGeometry kv_geometry() const override { return replicas_[0]->kv_geometry(); }
  int64_t vocab() const override { return replicas_[0]->vocab(); }
  int64_t max_positions() const override { return replicas_[0]->max_positions(); }
  std::span<const TokenId> eos_ids() const override { return replicas_[0]->eos_ids(); }

  Status AllocateKv(int32_t blocks) override {
    for (const auto& replica : replicas_) SF_RETURN_IF_ERROR(replica->AllocateKv(blocks));
    return OkStatus();
  }

  Result<std::span<const float>> Forward(std::span<const StepBatch> batches) override {
    logits_.clear();
    for (size_t r = 0; r < replicas_.size(); ++r) {
      if (batches[r].tokens.empty()) continue;
      SF_ASSIGN_OR_RETURN(const std::span<const float> logits,
                          replicas_[r]->Forward(batches.subspan(r, 1)));
      logits_.insert(logits_.end(), logits.begin(), logits.end());
    }
    return std::span<const float>(logits_);
  }

 private:
  const std::vector<std::unique_ptr<StepModel>> replicas_;
  std::vector<float> logits_;
};

}  // namespace

std::unique_ptr<StepModel> MakeReplicatedModel(std::vector<std::unique_ptr<StepModel>> replicas) {
  return std::make_unique<ReplicatedModel>(std::move(replicas));
}

}  // namespace sixfold
