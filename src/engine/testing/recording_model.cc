#include "engine/testing/recording_model.h"

#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"

namespace sixfold {
namespace {

class RecordingModel : public StepModel {
 public:
  RecordingModel(std::unique_ptr<StepModel> inner, LogitRecord& record) : inner_(std::move(inner)), record_(record) {}

  int replicas() const override { return inner_->replicas(); }
  int ranks_here() const override { return inner_->ranks_here(); }
  KvGeometry kv_geometry() const override { return inner_->kv_geometry(); }
  KvPlacement kv_placement() const override { return inner_->kv_placement(); }
  int64_t vocab() const override { return inner_->vocab(); }
  int64_t max_positions() const override { return inner_->max_positions(); }
  std::span<const TokenId> eos_ids() const override { return inner_->eos_ids(); }

  Status health() const override { return inner_->health(); }
  Status AllocateKv(int32_t blocks) override { return inner_->AllocateKv(blocks); }

  Result<std::span<const float>> Forward(std::span<const StepBatch> batches) override {
    std::vector<StepBatch> all(batches.begin(), batches.end());
    for (StepBatch& batch : all) {
      for (StepSequence& s : batch.sequences) s.logit_rows = s.rows;
    }
    SF_ASSIGN_OR_RETURN(std::span<const float> logits, inner_->Forward(all));
    asked_.clear();
    for (size_t replica = 0; replica < batches.size(); ++replica) {
      logits = logits.subspan(Record(static_cast<int>(replica), batches[replica], logits) * vocab());
    }
    return std::span<const float>(asked_);
  }

 private:
  // Takes the rows of one replica's batch from the head of `logits`; returns how many.
  int64_t Record(int replica, const StepBatch& batch, std::span<const float> logits) {
    int64_t row = 0;
    for (const StepSequence& s : batch.sequences) {
      // A living sequence is known by its first block: no other holds it until the sequence has ended or starts over.
      std::vector<TokenId>& prefix = prefix_by_first_block_[{replica, s.blocks.front()}];
      SF_CHECK_GE(static_cast<int64_t>(prefix.size()), s.first_position);
      prefix.resize(s.first_position);
      for (int64_t r = 0; r < s.rows; ++r, ++row) {
        const std::span<const float> values = logits.subspan(row * vocab(), vocab());
        prefix.push_back(batch.tokens[row]);
        record_.Add(prefix, values);
        if (r >= s.rows - s.logit_rows) asked_.insert(asked_.end(), values.begin(), values.end());
      }
    }
    return row;
  }

  const std::unique_ptr<StepModel> inner_;
  LogitRecord& record_;
  std::map<std::pair<int, int32_t>, std::vector<TokenId>> prefix_by_first_block_;
  std::vector<float> asked_;
};

}  // namespace

void LogitRecord::Add(const std::vector<TokenId>& prefix, std::span<const float> row) {
  const std::lock_guard lock(mutex_);
  const auto [seen, is_new] = rows_.try_emplace(prefix, row.begin(), row.end());
  if (is_new) return;
  ++comparisons_;
  SF_CHECK_EQ(seen->second.size(), row.size());
  if (std::memcmp(seen->second.data(), row.data(), row.size_bytes()) != 0) ++mismatches_;
}

int64_t LogitRecord::prefixes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(rows_.size());
}

int64_t LogitRecord::comparisons() const {
  const std::lock_guard lock(mutex_);
  return comparisons_;
}

int64_t LogitRecord::mismatches() const {
  const std::lock_guard lock(mutex_);
  return mismatches_;
}

std::unique_ptr<StepModel> MakeRecordingModel(std::unique_ptr<StepModel> inner, LogitRecord& record) {
  return std::make_unique<RecordingModel>(std::move(inner), record);
}

}  // namespace sixfold
