// The promise of reproducible numerics, seen from outside: the bits of every logit of a request depend on its tokens
// only. Twenty requests alone, then together in random batches, with prefill in chunks of 1, 7, 64 and whole, with
// preemption, on every ISA of this machine, with one thread and with two, on several replicas, over ranks that share the
// context. tests/golden has the models.
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/testing/cases.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/rank_group.h"
#include "engine/step_model.h"
#include "engine/testing/recorder.h"
#include "engine/testing/recording_model.h"
#include "engine/testing/replicated_model.h"
#include "kernels/numerics.h"
#include "model/model.h"
#include "model/shape.h"
#include "model/stage.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

constexpr int kRequests = 20;

std::vector<Request> MakeRequests(int64_t vocab) {
  uint32_t next = 0;
  const auto random = [&](int64_t low, int64_t high) {
    const double u = RandomUniform({.seed = 77, .position = next++, .purpose = RandomPurpose::kTest});
    return low + static_cast<int64_t>(u * static_cast<double>(high - low + 1));
  };
  std::vector<Request> requests(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    // Some of one token, some beyond a chunk of 64 and beyond several pages, some shorter than a window.
    const int64_t length = i < 2 ? i + 1 : random(2, i % 4 == 0 ? 140 : 70);
    for (int64_t t = 0; t < length; ++t) {
      requests[i].prompt.push_back(static_cast<TokenId>(random(0, vocab - 1)));
    }
    requests[i].sampling = {.temperature = i % 3 == 0 ? 0.0 : 1.0,
                            .seed = static_cast<uint64_t>(i),
                            .max_tokens = random(1, 24),
                            .ignore_eos = true};
  }
  return requests;
}

struct Setting {
  Isa isa = Isa::kScalar;
  int threads = 1;
  int replicas = 1;
  EngineOptions engine;
  std::string mesh = {};  // of ranks; empty: one
  ContextOptions context = {};
};

// One configuration of arithmetic: all its runs must give one set of bits.
struct Arithmetic {
  std::string folder;
  ActDType act = ActDType::kF32;
  int attention_chunk = 256;
};

std::string Name(const testing::TestParamInfo<Arithmetic>& info) {
  return info.param.folder + "_" + std::string(NameOf(info.param.act)) + "_chunk" +
         std::to_string(info.param.attention_chunk);
}

class Invariance : public testing::TestWithParam<Arithmetic> {
 protected:
  std::unique_ptr<Engine> Start(const Setting& run) { return Start(run, GetParam()); }

  std::unique_ptr<Engine> Start(const Setting& run, const Arithmetic& arithmetic) {
    if (!run.mesh.empty()) return StartRanks(run, arithmetic);
    std::vector<std::unique_ptr<StepModel>> replicas;
    for (int r = 0; r < run.replicas; ++r) replicas.push_back(Load(run, arithmetic));
    block_bytes_ = replicas[0]->kv_geometry().block_bytes();
    auto engine = Engine::StartWith(MakeRecordingModel(MakeReplicatedModel(std::move(replicas)), record_), run.engine);
    SF_CHECK(engine.ok());
    return std::move(engine).value();
  }

  static int HeadsOf(const Arithmetic& arithmetic) {
    const std::string path = "tests/golden/" + arithmetic.folder;
    return ConfigFor(*WeightStore::Open(path).value(), path).value().heads;
  }

  std::unique_ptr<Engine> StartRanks(const Setting& run, const Arithmetic& arithmetic) {
    const std::string path = "tests/golden/" + arithmetic.folder;
    const std::shared_ptr<const WeightStore> store(WeightStore::Open(path).value());
    const ModelConfig config = ConfigFor(*store, path).value();
    const ModelOptions options{.act = arithmetic.act, .isa = run.isa, .attention_chunk = arithmetic.attention_chunk};
    const Mesh mesh = Mesh::Parse(run.mesh).value();
    InstanceSpec spec{.store = store,
                      .config = config,
                      .options = options,
                      .layout = Layout::Make(ShapeOf(*store, config, options).value(),
                                             {.mesh = mesh, .cluster = Cluster::OneNode(mesh.world()), .context = run.context})
                                    .value()};
    block_bytes_ = LargestKvGeometry(spec.layout).block_bytes();
    auto engine = Engine::StartWith(MakeRecordingModel(RankGroup::StartThreads(std::move(spec), {}).value(), record_), run.engine);
    SF_CHECK(engine.ok());
    return std::move(engine).value();
  }

  std::unique_ptr<StepModel> Load(const Setting& run, const Arithmetic& arithmetic) {
    const std::filesystem::path path = std::filesystem::path("tests/golden") / arithmetic.folder;
    auto store = WeightStore::Open(path);
    SF_CHECK(store.ok());
    auto config = ConfigFor(**store, path);
    SF_CHECK(config.ok());
    auto model = Model::Load(
        std::move(store).value(), *config,
        {.act = arithmetic.act, .isa = run.isa, .threads = run.threads, .attention_chunk = arithmetic.attention_chunk});
    SF_CHECK(model.ok());
    return AdaptModel(std::move(model).value());
  }

  // Keeps the answers of the first run, compares those of the others.
  void CheckAnswer(size_t request, const std::vector<TokenId>& tokens) {
    if (answers_.size() == request) answers_.push_back(tokens);
    EXPECT_EQ(tokens, answers_[request]) << "request " << request;
  }

  void RunAlone(const Setting& run) {
    auto engine = Start(run);
    const std::vector<Request> requests = MakeRequests(96);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto out = Generate(*engine, requests[i], {});
      ASSERT_TRUE(out.ok());
      std::vector<TokenId> tokens;
      for (const SampledToken& t : out->choices[0].tokens) tokens.push_back(t.token);
      CheckAnswer(i, tokens);
    }
  }

  // Returns how often a sequence was preempted.
  uint64_t RunTogether(const Setting& run, uint64_t order_seed) {
    auto engine = Start(run);
    const std::vector<Request> requests = MakeRequests(96);
    std::vector<size_t> order(requests.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
      const RandomKey key{.seed = order_seed, .position = static_cast<uint32_t>(i), .purpose = RandomPurpose::kTest};
      std::swap(order[i], order[RandomBits(key)[0] % (i + 1)]);
    }
    std::deque<Recorder> recorders(requests.size());
    for (const size_t i : order) {
      EXPECT_TRUE(engine->Submit(requests[i], recorders[i].Sink()).ok());
      // Half of them arrive while others are in their answers.
      if (i % 2 == 0) recorders[i].WaitForTokens(2);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(recorders[i].Wait(std::chrono::minutes(2)));
      CheckAnswer(i, recorders[i].choice().tokens);
    }
    return engine->stats().preemptions;
  }

  LogitRecord record_;
  std::vector<std::vector<TokenId>> answers_;
  int64_t block_bytes_ = 0;
};

TEST_P(Invariance, EveryLogitHasTheBitsOfItsRequestAlone) {
  RunAlone({.isa = Isa::kScalar, .threads = 1, .engine = {.max_num_batched_tokens = 256}});
  EXPECT_EQ(record_.mismatches(), 0);
  const int64_t prefixes = record_.prefixes();
  ASSERT_GT(prefixes, 800);
  uint64_t preemptions = 0;
  int64_t rows_at_least = 0;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa > DetectIsa()) break;
    for (const int64_t chunk : {1, 7, 64, 0}) {
      if (kSanitized && chunk != 7 && (chunk != 64 || isa != DetectIsa())) continue;
      SCOPED_TRACE(testing::Message() << NameOf(isa) << ", chunk " << chunk);
      EngineOptions options{
          .max_num_seqs = 12, .max_num_batched_tokens = chunk == 0 ? 256 : 48, .max_prefill_chunk_tokens = chunk};
      if (chunk == 7) {  // little K/V memory as well, so that some are preempted and recompute
        options.max_model_len = 176;
        options.kv_cache_memory_bytes = 12 * block_bytes_;
      }
      preemptions += RunTogether({.isa = isa, .threads = chunk == 64 ? 2 : 1, .engine = options},
                                 static_cast<uint64_t>(isa) * 10 + chunk);
      rows_at_least += prefixes;
      EXPECT_EQ(record_.mismatches(), 0);
      EXPECT_EQ(record_.prefixes(), prefixes);
      EXPECT_GE(record_.comparisons(), rows_at_least);
    }
  }
  EXPECT_GT(preemptions, 0u);
}

TEST_P(Invariance, NoLogitDependsOnTheNumberOfReplicas) {
  RunAlone({.isa = DetectIsa(), .engine = {.max_num_batched_tokens = 256}});
  const int64_t prefixes = record_.prefixes();
  for (const int replicas : {2, 3}) {
    SCOPED_TRACE(replicas);
    EngineOptions options{.max_num_seqs = 12, .max_num_batched_tokens = 32};
    if (replicas == 2) {  // little K/V memory, so that some may start again on another replica
      options.max_model_len = 176;
      options.kv_cache_memory_bytes = 12 * block_bytes_;
    }
    RunTogether({.isa = DetectIsa(), .replicas = replicas, .engine = options}, replicas);
    EXPECT_EQ(record_.mismatches(), 0);
    EXPECT_EQ(record_.prefixes(), prefixes);
  }
}

TEST_P(Invariance, NoLogitDependsOnTheRanksThatShareTheContext) {
  RunAlone({.isa = DetectIsa(), .engine = {.max_num_batched_tokens = 256}});
  const int64_t prefixes = record_.prefixes();
  uint64_t preemptions = 0;
  const std::pair<const char*, ContextOptions> layouts[] = {{"cp2", {}},
                                                            {"cp3,pp2", {.form = CpForm::kAllGather}},
                                                            {"cp2,dp2", {.form = CpForm::kUlysses}},
                                                            {"cp4", {.form = CpForm::kUlyssesRing}},
                                                            {"tp2,cp2", {.form = CpForm::kStriped}}};
  for (const auto& [mesh, context] : layouts) {
    if (kSanitized && context.form != CpForm::kRing && context.form != CpForm::kUlyssesRing) continue;
    // Heads that two ranks cannot share: refused by name, mesh/layout_test.cc.
    if (context.form == CpForm::kUlysses && HeadsOf(GetParam()) % 2 != 0) continue;
    SCOPED_TRACE(mesh);
    EngineOptions options{.max_num_seqs = 12, .max_num_batched_tokens = 100};
    if (context.form == CpForm::kRing) {  // little K/V memory, so that some are preempted
      options.max_model_len = 176;
      options.max_num_batched_tokens = 48;
      options.max_prefill_chunk_tokens = 7;
      options.kv_cache_memory_bytes = (GetParam().attention_chunk == 256 ? 48 : 6) * block_bytes_;
    }
    preemptions += RunTogether({.isa = DetectIsa(), .engine = options, .mesh = mesh, .context = context}, prefixes);
    EXPECT_EQ(record_.mismatches(), 0);
    EXPECT_EQ(record_.prefixes(), prefixes);
  }
  // Larger chunks hold most of these requests whole.
  EXPECT_TRUE(GetParam().attention_chunk > 16 || preemptions > 0);
}

// The comparison can fail: another chunk of the softmax tree is other arithmetic.
class InvarianceRecord : public Invariance {};

TEST_P(InvarianceRecord, NoticesOtherArithmetic) {
  RunAlone({.isa = DetectIsa()});
  Arithmetic other = GetParam();
  other.attention_chunk = 32;
  auto engine = Start({.isa = DetectIsa()}, other);
  for (const Request& request : MakeRequests(96)) ASSERT_TRUE(Generate(*engine, request, {}).ok());
  EXPECT_GT(record_.mismatches(), 0);
}

TEST(Engine, StartsOverALoadedModel) {
  const std::filesystem::path path = "tests/golden/llama_gqa";
  auto store = WeightStore::Open(path);
  ASSERT_TRUE(store.ok());
  auto config = ConfigFor(**store, path);
  ASSERT_TRUE(config.ok());
  auto model = Model::Load(std::move(store).value(), *config, {.act = ActDType::kF32, .isa = DetectIsa()});
  ASSERT_TRUE(model.ok());
  auto engine = Engine::Start(std::move(model).value(), {});
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->model().config().family, "llama");
  EXPECT_EQ((*engine)->options().max_model_len, config->max_positions);
  Request request{.prompt = {1, 2, 3}, .sampling = {.max_tokens = 5, .ignore_eos = true, .logprobs = 2}};
  const auto out = Generate(**engine, request, {});
  ASSERT_TRUE(out.ok());
  ASSERT_EQ(out->choices[0].tokens.size(), 5u);
  EXPECT_EQ(out->choices[0].tokens[0].logprobs->top.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Golden, Invariance,
                         testing::ValuesIn(std::vector<Arithmetic>{{"llama_gqa", ActDType::kF32, 16},
                                                                   {"llama_gqa", ActDType::kF32, 256},
                                                                   {"llama_bf16", ActDType::kBF16, 16},
                                                                   {"llama_bf16", ActDType::kBF16, 256},
                                                                   {"mistral_window", ActDType::kBF16, 16},
                                                                   {"mixtral", ActDType::kF32, 256},
                                                                   {"mixtral", ActDType::kBF16, 16},
                                                                   {"qwen3_moe_bf16", ActDType::kBF16, 256},
                                                                   {"deepseek_v2_group", ActDType::kF32, 16},
                                                                   {"deepseek_v3_bf16", ActDType::kBF16, 32},
                                                                   {"deepseek_v3_fp8", ActDType::kBF16, 256},
                                                                   {"gpt_oss_mxfp4", ActDType::kBF16, 16}}),
                         Name);

INSTANTIATE_TEST_SUITE_P(Golden, InvarianceRecord, testing::Values(Arithmetic{"llama_gqa", ActDType::kF32, 16}), Name);

}  // namespace
}  // namespace sixfold
