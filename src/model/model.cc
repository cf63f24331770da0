#include "model/model.h"

#include <utility>

#include <fmt/format.h>

#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "model/forward.h"
#include "model/loader.h"
#include "model/rope.h"
#include "weights/weight_store.h"

namespace sixfold {

namespace {

// Raised whenever the arithmetic of a mode changes: K/V of two versions never mix.
constexpr int kNumericsVersion = 1;

}  // namespace

std::string ModelFingerprint(const WeightStore& store, const ModelOptions& o) {
  return fmt::format("{:016x}-{}{}-{}-c{}-l{}", store.Fingerprint(),
                     o.numerics == Numerics::kReproducible ? "r" : "f", kNumericsVersion, NameOf(o.act),
                     o.attention_chunk, o.reduction_leaves);
}

struct Model::Impl {
  Impl(std::unique_ptr<WeightStore> s, const ModelConfig& c, const ModelOptions& o)
      : store(std::move(s)), config(c), options(o), pool(o.threads, SetFloatMode), matmul(o.isa, pool),
        ops(o.isa, pool) {}

  std::unique_ptr<WeightStore> store;  // the embedding is read from its mapping
  ModelConfig config;
  ModelOptions options;
  ThreadPool pool;
  MatMul matmul;
  Ops ops;
  ModelWeights weights;
  std::vector<float> inverse_frequencies;
  float rotation_magnitude = 1.0f;
  std::string fingerprint;
  ForwardScratch scratch;
  Recording recording = Recording::kOff;
  ExpertRoutes recorded;
  std::optional<ExpertRoutes> forced;
};

Model::Model() = default;
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Load(std::unique_ptr<WeightStore> store, const ModelConfig& config,
                                           const ModelOptions& options) {
  std::unique_ptr<Model> model(new Model());
  model->impl_ = std::make_unique<Impl>(std::move(store), config, options);
  Impl& m = *model->impl_;
  SF_ASSIGN_OR_RETURN(m.weights, LoadWeights(*m.store, m.config, m.options, m.pool));
  m.inverse_frequencies = InverseFrequencies(m.config.rope, m.config.head_dim);
  m.rotation_magnitude = RotationMagnitude(m.config.rope);
  m.fingerprint = ModelFingerprint(*m.store, m.options);
  return model;
}

const ModelConfig& Model::config() const { return impl_->config; }
const ModelOptions& Model::options() const { return impl_->options; }
int64_t Model::packed_bytes() const { return impl_->weights.packed_bytes; }
const std::string& Model::fingerprint() const { return impl_->fingerprint; }

KvGeometry Model::kv_geometry() const {
  const ModelConfig& c = impl_->config;
  return {.layers = static_cast<int>(c.layers.size()), .kv_heads = c.kv_heads, .k_dim = c.head_dim,
          .v_dim = c.head_dim, .bf16 = impl_->options.act != ActDType::kF32};
}

std::span<const float> Model::Forward(const StepBatch& batch, KvStorage& kv) {
  Impl& m = *impl_;
  SetFloatMode();  // member 0 of the pool is whichever thread calls
  m.recorded = {.top_k = m.config.moe.top_k, .experts = {}};
  ForwardContext context{.config = m.config,
                         .weights = m.weights,
                         .act = m.options.act,
                         .attention_chunk = m.options.attention_chunk,
                         .inverse_frequencies = m.inverse_frequencies,
                         .rotation_magnitude = m.rotation_magnitude,
                         .matmul = m.matmul,
                         .ops = m.ops,
                         .pool = m.pool,
                         .s = m.scratch,
                         .record = m.recording == Recording::kOn ? &m.recorded : nullptr,
                         .forced = m.forced ? &*m.forced : nullptr};
  const std::span<const float> logits = sixfold::Forward(context, batch, kv);
  m.forced.reset();
  return logits;
}

void Model::RecordRoutes(Recording recording) { impl_->recording = recording; }
const ExpertRoutes& Model::recorded_routes() const { return impl_->recorded; }
void Model::ForceRoutes(ExpertRoutes routes) { impl_->forced = std::move(routes); }

}  // namespace sixfold
