// Parity with Hugging Face transformers: every folder of tests/golden holds a tiny model, its prompt, and the logits and
// greedy tokens that transformers computed for it (tests/golden/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "weights/tensor_reader.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = "tests/golden";

struct Expected {
  std::vector<TokenId> tokens, greedy;
  std::vector<float> logits;
  ExpertRoutes routes;   // top_k 0: a dense model
};

std::vector<float> Read(const WeightStore& store, const char* name) {
  const TensorInfo* t = store.Find(name);
  SF_CHECK(t != nullptr);
  return *ReadAll(store, *t);
}

Expected ReadExpected(const fs::path& folder) {
  auto store = WeightStore::Open(folder / "expected.safetensors");
  SF_CHECK(store.ok());
  Expected out;
  for (float id : Read(**store, "tokens")) out.tokens.push_back(static_cast<TokenId>(id));
  for (float id : Read(**store, "greedy")) out.greedy.push_back(static_cast<TokenId>(id));
  out.logits = Read(**store, "logits");
  if (const TensorInfo* routes = (*store)->Find("routes")) {
    const std::vector<float> values = Read(**store, "routes");
    out.routes.top_k = static_cast<int>(routes->shape[2]);
    const size_t layer = static_cast<size_t>(routes->shape[1]) * out.routes.top_k;
    for (int64_t l = 0; l < routes->shape[0]; ++l) {
      out.routes.experts.emplace_back(values.begin() + l * layer, values.begin() + (l + 1) * layer);
    }
  }
  return out;
}

std::unique_ptr<Model> Load(const fs::path& path, const fs::path& config_file, const ModelOptions& options) {
  auto store = WeightStore::Open(path);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  auto config = config_file.empty() ? ConfigFor(**store, path) : ConfigFromHf(config_file);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  if (!store.ok() || !config.ok()) return nullptr;
  auto model = Model::Load(std::move(store).value(), *config, options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? std::move(model).value() : nullptr;
}

// One sequence in its own K/V memory.
class Session {
 public:
  Session(Model& model, int64_t positions_max)
      : model_(model),
        kv_(KvStorage::Create(model.kv_geometry(), static_cast<int32_t>(BlocksFor(positions_max))).value()) {}

  std::vector<float> Feed(std::vector<TokenId> tokens) {
    StepSequence sequence{.first_position = position_, .rows = static_cast<int64_t>(tokens.size()),
                          .logit_rows = static_cast<int64_t>(tokens.size()), .blocks = {}};
    position_ += sequence.rows;
    for (int32_t b = 0; b < BlocksFor(position_); ++b) sequence.blocks.push_back(b);
    const auto logits = model_.Forward({.tokens = std::move(tokens), .sequences = {sequence}}, kv_);
    return {logits.begin(), logits.end()};
  }

 private:
  Model& model_;
  KvStorage kv_;
  int64_t position_ = 0;
};

double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

double Rms(const std::vector<float>& x) {
  double sum = 0;
  for (float v : x) sum += double{v} * v;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

// A model file or folder to load, the config to read (empty: its own), and the folder of its expected values.
struct Case {
  std::string name;
  fs::path model, config, expected;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    const fs::path folder = entry.path();
    if (!fs::exists(folder / "expected.safetensors")) continue;
    const std::string name = folder.filename();
    if (fs::exists(folder / "config.json")) cases.push_back({name, folder, "", folder});
    if (fs::exists(folder / "model.gguf")) cases.push_back({name + "_gguf", folder / "model.gguf", "", folder});
    for (const auto& file : fs::directory_iterator(folder)) {
      const std::string base = file.path().filename();
      if (base.starts_with("config.") && base != "config.json" && base.ends_with(".json")) {
        cases.push_back({name + "_" + base.substr(7, base.size() - 12), folder, file.path(), folder});
      }
    }
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.name < b.name; });
  return cases;
}

class Golden : public ::testing::TestWithParam<Case> {};

TEST_P(Golden, LogitsAndGreedyTokensEqualTransformersInF32) {
  const Expected expected = ReadExpected(GetParam().expected);
  auto model = Load(GetParam().model, GetParam().config, {.act = ActDType::kF32, .isa = DetectIsa(), .threads = 2});
  ASSERT_NE(model, nullptr);
  model->RecordRoutes(Model::Recording::kOn);
  Session session(*model, static_cast<int64_t>(expected.tokens.size() + expected.greedy.size()));
  std::vector<float> logits = session.Feed(expected.tokens);
  EXPECT_LE(MaxDifference(logits, expected.logits), 1e-4);
  EXPECT_EQ(model->recorded_routes().experts, expected.routes.experts);
  const size_t vocab = model->config().vocab;
  std::vector<TokenId> greedy;
  while (greedy.size() < expected.greedy.size()) {
    greedy.push_back(ArgMax(std::span(logits).last(vocab)));
    logits = session.Feed({greedy.back()});
  }
  EXPECT_EQ(greedy, expected.greedy);
}

TEST_P(Golden, Bf16StaysWithinAQuarterOfRms) {
  const Expected expected = ReadExpected(GetParam().expected);
  auto model = Load(GetParam().model, GetParam().config, {.act = ActDType::kBF16, .isa = DetectIsa(), .threads = 2});
  ASSERT_NE(model, nullptr);
  if (expected.routes.top_k > 0) model->ForceRoutes(expected.routes);
  Session session(*model, static_cast<int64_t>(expected.tokens.size()));
  const std::vector<float> logits = session.Feed(expected.tokens);
  EXPECT_LE(MaxDifference(logits, expected.logits), 0.25 * Rms(expected.logits));
}

INSTANTIATE_TEST_SUITE_P(All, Golden, ::testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sixfold
