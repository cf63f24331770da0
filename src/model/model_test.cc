// The forward pass against itself: what must not change a bit, and what must be refused.
#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "base/testing/cases.h"
#include "weights/safetensors_writer.h"
#include "weights/tensor_reader.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::unique_ptr<Model> Load(const fs::path& path, const ModelOptions& options) {
  auto store = WeightStore::Open(path);
  SF_CHECK(store.ok());
  auto config = ConfigFor(**store, path);
  SF_CHECK(config.ok());
  return Model::Load(std::move(store).value(), *config, options).value();
}

std::vector<TokenId> Prompt(int length, int64_t vocab, uint64_t seed) {
  std::vector<TokenId> out;
  for (int i = 0; i < length; ++i) {
    out.push_back(static_cast<TokenId>(RandomBits({.seed = seed, .position = static_cast<uint32_t>(i)})[0] % vocab));
  }
  return out;
}

// Logits of every position, the prompt fed in pieces of `piece` rows, its blocks numbered in a shuffled way.
std::vector<float> FeedAll(Model& model, const std::vector<TokenId>& prompt, int64_t piece) {
  const auto blocks = static_cast<int32_t>(BlocksFor(static_cast<int64_t>(prompt.size())));
  KvStorage kv = KvStorage::Create(model.kv_geometry(), blocks * 3).value();
  std::vector<float> out;
  for (int64_t at = 0; at < static_cast<int64_t>(prompt.size()); at += piece) {
    const int64_t rows = std::min<int64_t>(piece, static_cast<int64_t>(prompt.size()) - at);
    StepSequence s{.first_position = at, .rows = rows, .logit_rows = rows, .blocks = {}};
    for (int32_t b = 0; b < BlocksFor(at + rows); ++b) s.blocks.push_back(3 * (blocks - 1 - b) + b % 3);
    StepBatch batch{.tokens = {prompt.begin() + at, prompt.begin() + at + rows}, .sequences = {s}};
    const auto logits = model.Forward(batch, kv);
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

::testing::AssertionResult SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " vs " << b.size() << " logits";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      return ::testing::AssertionFailure() << "logit " << i << ": " << a[i] << " vs " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

class Invariance : public ::testing::TestWithParam<std::tuple<const char*, ActDType>> {
 protected:
  ModelOptions Options(Isa isa, int threads) const {
    return {.act = std::get<1>(GetParam()), .isa = isa, .threads = threads, .attention_chunk = 16};
  }
  fs::path path() const { return fs::path("tests/golden") / std::get<0>(GetParam()); }
};

TEST_P(Invariance, IsaThreadsAndChunksOfThePromptDoNotChangeABit) {
  auto plain = Load(path(), Options(Isa::kScalar, 1));
  const int length = FullOr(75, 40);
  const std::vector<TokenId> prompt = Prompt(length, plain->config().vocab, 1);
  const std::vector<float> whole = FeedAll(*plain, prompt, length);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa > DetectIsa()) continue;
    auto model = Load(path(), Options(isa, 3));
    for (const int piece : {1, 7, 64, 75}) {
      if (kSanitized && piece != 7 && piece != 75) continue;
      EXPECT_TRUE(SameBits(FeedAll(*model, prompt, piece), whole)) << NameOf(isa) << ", pieces of " << piece;
    }
  }
}

TEST_P(Invariance, ARequestAmongOthersIsTheRequestAlone) {
  auto model = Load(path(), Options(DetectIsa(), 2));
  const int64_t vocab = model->config().vocab;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<float>> alone;
  for (uint64_t i = 0; i < 5; ++i) {
    prompts.push_back(Prompt(20 + static_cast<int>(i) * 9, vocab, i));
    alone.push_back(FeedAll(*model, prompts.back(), 1000));
  }
  KvStorage kv = KvStorage::Create(model->kv_geometry(), 40).value();
  StepBatch batch;
  int32_t next_block = 0;
  for (const auto& prompt : prompts) {
    const auto rows = static_cast<int64_t>(prompt.size());
    StepSequence s{.first_position = 0, .rows = rows, .logit_rows = rows, .blocks = {}};
    for (int32_t b = 0; b < BlocksFor(rows); ++b) s.blocks.push_back(next_block++);
    batch.sequences.push_back(std::move(s));
    batch.tokens.insert(batch.tokens.end(), prompt.begin(), prompt.end());
  }
  const auto together = model->Forward(batch, kv);
  size_t at = 0;
  for (const auto& expected : alone) {
    EXPECT_TRUE(SameBits({together.begin() + at, together.begin() + at + expected.size()}, expected));
    at += expected.size();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Invariance,
    ::testing::Combine(::testing::Values("llama_odd", "llama_gqa", "mistral_window", "qwen3_fp8", "qwen3_moe_mixed",
                                         "olmoe_clip", "gpt_oss", "gpt_oss_mxfp4", "mixtral_gguf_q32/model.gguf", "llama_gguf_q32/model.gguf",
                                         "llama_gguf_k/model.gguf", "llama_f16"),
                       ::testing::Values(ActDType::kF32, ActDType::kBF16, ActDType::kInt8)));

TEST(Model, ForcingTheRoutesThatWereRecordedChangesNothing) {
  auto model = Load("tests/golden/qwen3_moe", {.act = ActDType::kBF16, .isa = DetectIsa()});
  const std::vector<TokenId> prompt = Prompt(30, model->config().vocab, 3);
  model->RecordRoutes(Model::Recording::kOn);
  const std::vector<float> free = FeedAll(*model, prompt, 1000);
  ExpertRoutes routes = model->recorded_routes();
  model->ForceRoutes(routes);
  EXPECT_TRUE(SameBits(FeedAll(*model, prompt, 1000), free));
  std::swap(routes.experts[0][0], routes.experts[0][1]);
  routes.experts[0][2] = (routes.experts[0][2] + 1) % model->config().moe.experts;
  model->ForceRoutes(routes);
  EXPECT_FALSE(SameBits(FeedAll(*model, prompt, 1000), free));
}

TEST(Model, AttentionChunkAndLeavesAreArithmetic) {
  auto a = Load("tests/golden/llama_gqa", {.act = ActDType::kBF16, .isa = DetectIsa(), .attention_chunk = 16});
  auto b = Load("tests/golden/llama_gqa", {.act = ActDType::kBF16, .isa = DetectIsa(), .attention_chunk = 256});
  EXPECT_NE(ModelFingerprint({}, a->config(), a->options()),
            ModelFingerprint({}, b->config(), b->options()));
  const std::vector<TokenId> prompt = Prompt(90, a->config().vocab, 3);
  EXPECT_FALSE(SameBits(FeedAll(*a, prompt, 1000), FeedAll(*b, prompt, 1000)));
}

TEST(Model, FastModeStaysCloseToReproducible) {
  auto a = Load("tests/golden/llama_gqa", {.act = ActDType::kF32, .isa = DetectIsa()});
  auto b = Load("tests/golden/llama_gqa", {.numerics = Numerics::kFast, .act = ActDType::kF32, .isa = DetectIsa()});
  const std::vector<TokenId> prompt = Prompt(50, a->config().vocab, 3);
  const std::vector<float> x = FeedAll(*a, prompt, 1000), y = FeedAll(*b, prompt, 1000);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-4);
}

// Writes the golden model `name` again with one change to its list of tensors.
class ChangedModel : public ::testing::Test {
 protected:
  using Change = std::function<void(std::vector<OutputTensor>&)>;

  Status LoadChanged(const Change& change) {
    const fs::path source = "tests/golden/llama_head_dim";
    auto store = WeightStore::Open(source).value();
    std::vector<OutputTensor> tensors;
    for (const TensorInfo& t : store->tensors()) tensors.push_back({t.name, t.dtype, t.shape, store->Bytes(t)});
    change(tensors);
    const fs::path folder = fs::path(::testing::TempDir()) / "changed_model";
    fs::create_directories(folder);
    fs::copy_file(source / "config.json", folder / "config.json", fs::copy_options::overwrite_existing);
    SF_CHECK(WriteSafetensors(folder / "model.safetensors", tensors).ok());
    auto changed = WeightStore::Open(folder).value();
    auto config = ConfigFor(*changed, folder).value();
    return Model::Load(std::move(changed), config, {}).status();
  }
};

TEST_F(ChangedModel, MissingExtraAndWrongShapeAreNamed) {
  EXPECT_TRUE(LoadChanged([](auto&) {}).ok());
  EXPECT_THAT(LoadChanged([](auto& t) {
                std::erase_if(t, [](const auto& x) { return x.name == "model.layers.1.mlp.up_proj.weight"; });
              }).message(),
              HasSubstr("'model.layers.1.mlp.up_proj.weight' ["));
  const std::vector<std::byte> zeros(64);
  EXPECT_THAT(LoadChanged([&](auto& t) { t.push_back({"model.extra.weight", DType::kF32, {16}, zeros}); }).message(),
              HasSubstr("'model.extra.weight' (F32 [16]): expected no such tensor"));
  EXPECT_TRUE(LoadChanged([&](auto& t) {
                t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {16}, zeros});
              }).ok());
  EXPECT_THAT(LoadChanged([](auto& t) {
                for (auto& x : t) {
                  if (x.name == "model.layers.0.self_attn.k_proj.weight") std::swap(x.shape[0], x.shape[1]);
                }
              }).message(),
              HasSubstr("expected shape ["));
  const std::vector<std::byte> integers(8 * 1024);
  EXPECT_THAT(LoadChanged([&](auto& t) {
                for (auto& x : t) {
                  if (x.name != "model.norm.weight") continue;
                  x.dtype = DType::kI64;
                  x.data = std::span(integers).first(static_cast<size_t>(x.shape[0]) * 8);
                }
              }).message(),
              HasSubstr("got I64"));
}

}  // namespace
}  // namespace sixfold
