#include "model/model.h"

#include <utility>

#include <fmt/format.h>

#include "base/machine.h"
#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "model/forward.h"
#include "model/inventory.h"
#include "model/loader.h"
#include "model/rope.h"
#include "model/shape.h"
#include "model/stage.h"
#include "weights/weight_store.h"

namespace sixfold {

namespace {

// Raised whenever the arithmetic of a mode changes: K/V of two versions never mix.
constexpr int kNumericsVersion = 1;

}  // namespace

namespace {

std::string NumericsText(const ModelOptions& o) {
  return fmt::format("{}{}-{}-c{}-l{}", o.numerics == Numerics::kReproducible ? "r" : "f",
                     kNumericsVersion, NameOf(o.act), o.attention_chunk, o.reduction_leaves);
}

}  // namespace

std::string NumericsIdentity(const ModelConfig& config, const ModelOptions& options) {
  return fmt::format("{:016x}-{}", config.source_hash, NumericsText(options));
}

std::string ModelFingerprint(const Digest256& weights, const ModelConfig& config,
                             const ModelOptions& options) {
  const Digest256 both = Sha256().Add(weights).Add(config.source_hash).Finish();
  return FingerprintText(both) + "-" + NumericsText(options);
}

std::string FingerprintText(const Digest256& digest) {
  return HexText(std::span(digest).first(16));
}

struct Model::Impl {
  Impl(std::shared_ptr<const WeightStore> s, const ModelConfig& c, const ModelOptions& o, const Layout& l, int rank)
      : store(std::move(s)), config(c), options(o), layout(l), shard(l.Shard(rank)),
        pool(o.threads, SetFloatMode, o.threads > UsableCores() ? ThreadPool::Spin::kNever : ThreadPool::Spin::kBriefly),
        matmul(o.isa, pool), ops(o.isa, pool) {}

  ForwardContext Context(int64_t step) {
    return {.config = config,
            .weights = weights,
            .layout = layout,
            .own = shard,
            .comm = comm,
            .act = options.act,
            .attention_chunk = options.attention_chunk,
            .inverse_frequencies = inverse_frequencies,
            .rotation_magnitude = rotation_magnitude,
            .matmul = matmul,
            .ops = ops,
            .pool = pool,
            .s = scratch,
            .step = step,
            .observer = observer ? &observer : nullptr,
            .exchange = exchange ? &*exchange : nullptr,
            .planners = planners,
            .expert_tokens = expert_tokens,
            .record = recording == Recording::kOn ? &recorded : nullptr,
            .forced = forced ? &*forced : nullptr,
            .trace = recorder,
            .context = context ? &*context : nullptr};
  }

  void SetUpExperts(int rank) {
    int64_t sparse = 0;
    for (int64_t l = shard.layers.begin; l < shard.layers.end; ++l) sparse += config.layers[l].sparse ? 1 : 0;
    expert_tokens.assign(sparse * config.moe.experts, 0);
    if (!layout.dispatches()) return;
    const std::vector<int> group = layout.DispatchGroup(rank);
    for (const int member : group) members.push_back(layout.Shard(member));
    for (int64_t l = shard.layers.begin; l < shard.layers.end; ++l) {
      planners.push_back(config.layers[l].sparse ? layout.PlannerFor(static_cast<int>(l), group) : DispatchPlanner());
    }
  }

  std::shared_ptr<const WeightStore> store;  // the embedding is read from its mapping
  ModelConfig config;
  ModelOptions options;
  Layout layout;
  RankShard shard;
  RankComm comm;
  ThreadPool pool;
  MatMul matmul;
  Ops ops;
  ModelWeights weights;
  std::vector<float> inverse_frequencies;
  float rotation_magnitude = 1.0f;
  ForwardScratch scratch;
  StageBuffers buffers;
  std::optional<ExpertExchange> exchange;
  std::optional<ContextAttention> context;   // when ranks share the context
  std::vector<DispatchPlanner> planners;     // [layers of the stage], when rows travel to experts
  std::vector<RankShard> members;            // of the exchange
  std::vector<int64_t> expert_tokens;
  std::function<void(const Observation&)> observer;
  trace::Recorder* recorder = nullptr;
  Recording recording = Recording::kOff;
  ExpertRoutes recorded;
  std::optional<ExpertRoutes> forced;
};

Model::Model() = default;
Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::Load(std::unique_ptr<WeightStore> store, const ModelConfig& config,
                                           const ModelOptions& options) {
  SF_RETURN_IF_ERROR(CheckTensors(*store, config));
  SF_ASSIGN_OR_RETURN(const ModelShape shape, ShapeOf(*store, config, options));
  return LoadShard(std::move(store), config, options, Layout::Whole(shape), 0);
}

Result<std::unique_ptr<Model>> Model::LoadShard(std::shared_ptr<const WeightStore> store, const ModelConfig& config,
                                                const ModelOptions& options, const Layout& layout, int rank) {
  std::unique_ptr<Model> model(new Model());
  model->impl_ = std::make_unique<Impl>(std::move(store), config, options, layout, rank);
  Impl& m = *model->impl_;
  SF_ASSIGN_OR_RETURN(m.weights, LoadWeights(*m.store, m.config, m.options, m.layout, rank, m.pool));
  m.inverse_frequencies = InverseFrequencies(m.config.rope, m.config.rotary_dim());
  m.rotation_magnitude = RotationMagnitude(m.config.rope);
  m.store->DropAllPages();  // what is left: norms, edges of tensors
  m.SetUpExperts(rank);
  if (layout.cp() > 1) m.context.emplace(m.layout, m.shard, m.ops);
  return model;
}

const Layout& Model::layout() const { return impl_->layout; }
const RankShard& Model::shard() const { return impl_->shard; }
const ModelConfig& Model::config() const { return impl_->config; }
const ModelOptions& Model::options() const { return impl_->options; }
int64_t Model::packed_bytes() const { return impl_->weights.packed_bytes; }

KvGeometry Model::kv_geometry() const { return KvGeometryOf(impl_->layout, impl_->shard); }

std::span<const float> Model::Forward(const StepBatch& batch, KvStorage& kv) {
  Impl& m = *impl_;
  SF_CHECK_EQ(m.layout.world(), 1);
  const Status status = RunStage({.micro_batches = {&batch, 1}}, kv);
  SF_CHECK(status.ok());  // nobody to wait for
  return stage_logits();
}

void Model::Observe(std::function<void(const Observation&)> observer) { impl_->observer = std::move(observer); }

void Model::Trace(trace::Recorder* recorder) {
  impl_->recorder = recorder;
  if (impl_->exchange) impl_->exchange->Trace(recorder);
  if (impl_->context) impl_->context->Trace(recorder);
}

void Model::Connect(const RankComm& comm) {
  Impl& m = *impl_;
  m.comm = comm;
  if (!m.layout.dispatches()) return;
  const auto wire = [](int bytes) { return bytes == 4 ? WireType::kF32 : WireType::kBF16; };
  const ModelShape& shape = m.layout.shape();
  m.exchange.emplace(comm.experts,
                     ExchangeOptions{.hidden = shape.hidden,
                                     .dispatch = wire(shape.dispatch_element_bytes),
                                     .combine = wire(shape.combine_element_bytes)},
                     m.ops);
  m.exchange->Trace(m.recorder);
}

Status Model::RunStage(const StageWork& work, KvStorage& kv) {
  SetFloatMode();  // member 0 of the pool is whichever thread calls
  Impl& m = *impl_;
  m.recorded = {.top_k = m.config.moe.top_k, .experts = {}};
  ForwardContext context = m.Context(work.step);
  const Status status = RunMicroBatches(context, work, m.members, kv, &m.buffers);
  m.forced.reset();
  return status;
}

ExpertCounters Model::expert_counters() const {
  ExpertCounters counters{.tokens = impl_->expert_tokens};
  if (impl_->exchange) {
    counters.dispatch = impl_->exchange->dispatch_time();
    counters.combine = impl_->exchange->combine_time();
  }
  return counters;
}

int64_t Model::transit_bytes_max() const { return impl_->context ? impl_->context->transit_bytes_max() : 0; }

std::span<const float> Model::stage_logits() const { return impl_->buffers.logits; }

void Model::RecordRoutes(Recording recording) { impl_->recording = recording; }
const ExpertRoutes& Model::recorded_routes() const { return impl_->recorded; }
void Model::ForceRoutes(ExpertRoutes routes) { impl_->forced = std::move(routes); }

}  // namespace sixfold
