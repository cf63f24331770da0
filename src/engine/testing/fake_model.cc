#include "engine/testing/fake_model.h"

#include <chrono>
#include <limits>

#include "base/check.h"
#include "base/random.h"
#include "kv/storage.h"

namespace sixfold {
namespace {

constexpr std::chrono::seconds kGatePatience{10};

uint64_t Extend(uint64_t hash, TokenId token, int64_t position) {
  hash ^= static_cast<uint64_t>(token) + 0x9E3779B97F4A7C15u + (static_cast<uint64_t>(position) << 32);
  hash *= 0xD6E8FEB86659FD93u;
  return hash ^ (hash >> 29);
}

void FillLogits(const FakeModelOptions& options, uint64_t hash, TokenId last, float* out) {
  for (int64_t v = 0; v < options.vocab; v += 4) {
    const auto bits = RandomBits({.seed = hash, .position = static_cast<uint32_t>(v), .purpose = RandomPurpose::kTest});
    for (int64_t i = v; i < std::min(v + 4, options.vocab); ++i) {
      out[i] = (static_cast<float>(bits[i - v] >> 8) * 0x1.0p-23f - 1.0f) * options.spread;
    }
  }
  out[0] += options.eos_bonus;
  if (options.nan_after == last) {
    std::fill(out, out + options.vocab, std::numeric_limits<float>::quiet_NaN());
  }
}

class FakeModel : public StepModel {
 public:
  explicit FakeModel(const FakeModelOptions& options) : options_(options) {}

  KvGeometry kv_geometry() const override {
    return {.layers = 1, .kv_heads = 1, .k_dim = 1, .v_dim = 1, .bf16 = false};
  }
  int64_t vocab() const override { return options_.vocab; }
  int64_t max_positions() const override { return options_.max_positions; }
  std::span<const TokenId> eos_ids() const override { return options_.eos_ids; }

  int replicas() const override { return options_.replicas; }

  Status AllocateKv(int32_t blocks) override {
    SF_CHECK(kv_.empty());
    for (int r = 0; r < options_.replicas; ++r) {
      SF_ASSIGN_OR_RETURN(KvStorage storage, KvStorage::Create(kv_geometry(), blocks));
      kv_.push_back(std::move(storage));
    }
    return OkStatus();
  }

  Result<std::span<const float>> Forward(std::span<const StepBatch> batches) override {
    SF_CHECK_EQ(batches.size(), kv_.size());
    if (options_.gate != nullptr) options_.gate->Pass();
    const int64_t pass = passes_++;
    if (options_.fail_at_pass) {
      SF_CHECK_LE(pass, *options_.fail_at_pass);
      if (pass == *options_.fail_at_pass) return Status(StatusCode::kDeadline, kFakeFailure);
    }
    logits_.clear();
    for (size_t replica = 0; replica < batches.size(); ++replica) Compute(batches[replica], kv_[replica]);
    return std::span<const float>(logits_);
  }

  Status health() const override {
    const bool dead = options_.dead != nullptr && *options_.dead;
    return dead ? Status(StatusCode::kInternal, kFakeFailure) : OkStatus();
  }

 private:
  void Compute(const StepBatch& batch, KvStorage& kv) {
    const KvLayerView view = kv.Layer(0);
    auto* tokens = reinterpret_cast<float*>(view.k);
    auto* positions = reinterpret_cast<float*>(view.v);
    int64_t first_row = 0;
    for (const StepSequence& s : batch.sequences) {
      SF_CHECK_GE(s.rows, 1);
      SF_CHECK_EQ(static_cast<int64_t>(s.blocks.size()), BlocksFor(s.first_position + s.rows));
      const auto slot = [&](int64_t p) { return s.blocks[p / kPageTokens] * kPageTokens + p % kPageTokens; };
      for (int64_t r = 0; r < s.rows; ++r) {
        const int64_t p = s.first_position + r;
        SF_CHECK_LT(p, options_.max_positions);
        tokens[slot(p)] = static_cast<float>(batch.tokens[first_row + r]);
        positions[slot(p)] = static_cast<float>(p);
      }
      first_row += s.rows;
      uint64_t hash = 0;
      const int64_t end = s.first_position + s.rows;
      for (int64_t p = 0; p < end; ++p) {
        SF_CHECK_EQ(static_cast<int64_t>(positions[slot(p)]), p);
        const auto token = static_cast<TokenId>(tokens[slot(p)]);
        hash = Extend(hash, token, p);
        if (p < end - s.logit_rows) continue;
        logits_.resize(logits_.size() + options_.vocab);
        FillLogits(options_, hash, token, logits_.data() + logits_.size() - options_.vocab);
      }
    }
    SF_CHECK_EQ(first_row, static_cast<int64_t>(batch.tokens.size()));
    if (options_.rows != nullptr) *options_.rows += first_row;
  }

  const FakeModelOptions options_;
  std::vector<KvStorage> kv_;  // [replicas]
  std::vector<float> logits_;
  int64_t passes_ = 0;
};

}  // namespace

void StepGate::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void StepGate::Open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  changed_.notify_all();
}

bool StepGate::WaitUntilBlocked() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kGatePatience, [&] { return blocked_; });
}

void StepGate::Pass() {
  std::unique_lock lock(mutex_);
  blocked_ = closed_;
  changed_.notify_all();
  changed_.wait_for(lock, kGatePatience, [&] { return !closed_; });
  blocked_ = false;
}

std::vector<float> FakeLogits(const FakeModelOptions& options, std::span<const TokenId> tokens) {
  uint64_t hash = 0;
  for (size_t p = 0; p < tokens.size(); ++p) hash = Extend(hash, tokens[p], static_cast<int64_t>(p));
  std::vector<float> logits(options.vocab);
  FillLogits(options, hash, tokens.back(), logits.data());
  return logits;
}

std::unique_ptr<StepModel> MakeFakeModel(const FakeModelOptions& options) {
  return std::make_unique<FakeModel>(options);
}

}  // namespace sixfold
