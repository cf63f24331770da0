// Ranks as threads against one rank: equal bits, equal bytes, and an end with a reason when one goes astray.
#include "engine/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <thread>

#include "base/random.h"
#include "kernels/ops.h"
#include "kv/block_pool.h"
#include "mesh/cluster.h"
#include "model/shape.h"
#include "trace/journey.h"
#include "weights/safetensors_writer.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

struct Subject {
  std::shared_ptr<const WeightStore> store;
  ModelConfig config;
  ModelOptions options;
  ModelShape shape;
};

// A Llama whose nine query heads share three K/V heads, so that ranks begin in the middle of a group, with biases on the
// projections and an embedding that holds -0: what the golden models do not have.
std::filesystem::path MakeUnevenModel() {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "uneven";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 72, "intermediate_size": 96,
             "num_hidden_layers": 3, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8, "vocab_size": 61,
             "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
             "attention_bias": true, "mlp_bias": true, "hidden_act": "silu"})";
  std::vector<OutputTensor> tensors;
  std::vector<std::vector<float>> data;
  data.reserve(64);
  uint32_t draw = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float>& values = data.emplace_back();
    for (int64_t i = 0; i < count; ++i) {
      const double u = RandomUniform({.seed = 8, .position = draw++, .purpose = RandomPurpose::kTest});
      values.push_back(u < 0.1 ? -0.0f : static_cast<float>(u - 0.5));
    }
    tensors.push_back({name, DType::kF32, std::move(shape), std::as_bytes(std::span(values))});
  };
  add("model.embed_tokens.weight", {61, 72});
  add("model.norm.weight", {72});
  add("lm_head.weight", {61, 72});
  for (int l = 0; l < 3; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    add(layer + "input_layernorm.weight", {72});
    add(layer + "post_attention_layernorm.weight", {72});
    const auto linear = [&](const std::string& name, int64_t rows, int64_t cols) {
      add(layer + name + ".weight", {rows, cols});
      add(layer + name + ".bias", {rows});
    };
    linear("self_attn.q_proj", 72, 72);
    linear("self_attn.k_proj", 24, 72);
    linear("self_attn.v_proj", 24, 72);
    linear("self_attn.o_proj", 72, 72);
    linear("mlp.gate_proj", 96, 72);
    linear("mlp.up_proj", 96, 72);
    linear("mlp.down_proj", 72, 96);
  }
  SF_CHECK(WriteSafetensors(folder / "model.safetensors", tensors).ok());
  return folder;
}

Subject Open(const std::string& model, Numerics numerics = Numerics::kReproducible, ActDType act = ActDType::kBF16,
             int attention_chunk = 256) {
  const std::string path = model == "uneven" ? MakeUnevenModel().string() : "tests/golden/" + model;
  Subject s;
  s.store = std::shared_ptr<const WeightStore>(WeightStore::Open(path).value());
  s.config = ConfigFor(*s.store, path).value();
  s.options = {.numerics = numerics, .act = act, .isa = DetectIsa(), .attention_chunk = attention_chunk};
  s.shape = ShapeOf(*s.store, s.config, s.options).value();
  return s;
}

struct LayoutSpec {
  std::string mesh;
  bool sp = false;
  int nodes = 1;
  ExpertMeshRequest experts = {};
  ContextOptions context = {};
};

InstanceSpec SpecOf(const Subject& s, const LayoutSpec& l) {
  const Mesh mesh = Mesh::Parse(l.mesh).value();
  return {.store = s.store,
          .config = s.config,
          .options = s.options,
          .layout = Layout::Make(s.shape, {.mesh = mesh,
                                           .cluster = Cluster::EqualNodes(mesh.world(), l.nodes).value(),
                                           .sequence_parallel = l.sp,
                                           .experts = l.experts,
                                           .context = l.context})
                        .value()};
}

constexpr int64_t kPrompts[] = {5, 1, 19, 33};

// For which rows logits are wanted. kSome, as an engine asks: of a prompt the last one, of one that is not complete none; and of
// one sequence the last two.
enum class Wanted : uint8_t { kAll, kSome };
int64_t LogitRows(Wanted wanted, int sequence, int step, int64_t rows) {
  if (wanted == Wanted::kAll) return rows;
  if (sequence == 2) return step % 2;
  return std::min<int64_t>(rows, sequence == 3 ? 2 : 1);
}

// Prefill of all prompts in one step and some decode steps, replicas as they come; logits of all steps one after the other.
Result<std::vector<float>> RunSteps(StepModel& model, int decode_steps, Wanted wanted = Wanted::kAll) {
  constexpr int32_t kBlocks = 32;
  SF_RETURN_IF_ERROR(model.AllocateKv(kBlocks));
  std::vector<float> all;
  const int replicas = model.replicas();
  const KvPlacement placement = model.kv_placement();
  std::vector<BlockPool> pools(replicas, BlockPool(static_cast<int32_t>(placement.UnitsOfPool(kBlocks)), placement.pools()));
  std::vector<std::vector<int32_t>> units(4);
  for (int step = 0; step <= decode_steps; ++step) {
    std::vector<StepBatch> batches(replicas);
    for (int s = 0; s < 4; ++s) {
      // In order: the last replica of three or more is idle.
      const int replica = replicas >= 3 ? s * (replicas - 1) / 4 : s * replicas / 4;
      StepBatch& batch = batches[replica];
      StepSequence sequence{.first_position = step == 0 ? 0 : kPrompts[s] + step - 1, .rows = step == 0 ? kPrompts[s] : 1};
      sequence.logit_rows = LogitRows(wanted, s, step, sequence.rows);
      const KvDemand demand{.first_position = sequence.first_position, .rows = sequence.rows,
                            .units = static_cast<int64_t>(units[s].size()), .batch_row = static_cast<int64_t>(batch.tokens.size())};
      pools[replica].TakeFor(placement, demand, {}, &units[s]);
      sequence.blocks = BlockTable(placement, units[s], sequence.first_position + sequence.rows, kBlocks);
      for (int64_t r = 0; r < sequence.rows; ++r) {
        batch.tokens.push_back(static_cast<TokenId>((7 * (sequence.first_position + r) + 3 * s + 1) % model.vocab()));
      }
      batch.sequences.push_back(std::move(sequence));
    }
    SF_ASSIGN_OR_RETURN(const std::span<const float> logits, model.Forward(batches));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<float> OneRank(const Subject& s, int decode_steps) {
  const std::unique_ptr<StepModel> model =
      AdaptModel(Model::LoadShard(s.store, s.config, s.options, Layout::Whole(s.shape), 0).value());
  return RunSteps(*model, decode_steps).value();
}

// Every byte that the ledger counted left in a message of which somebody said whose it is.
void ExpectAllIsRecorded(RankGroup& group, const Ledger& counted) {
  const trace::Run run(group.TakeTrace().value());
  trace::Names names;
  for (int axis = 0; axis < kAxisCount; ++axis) names.axes.emplace_back(NameOf(static_cast<Axis>(axis)));
  for (int op = 0; op <= static_cast<int>(CommOp::kBarrier); ++op) names.ops.emplace_back(NameOf(static_cast<CommOp>(op)));
  EXPECT_EQ(run.FirstUnsaid(names), "");
  std::map<trace::TotalKey, trace::Total> totals = run.Totals();
  int64_t metadata = 0;
  for (const auto& [key, entry] : counted) {
    if (key.op == CommOp::kRoutes) metadata += entry.bytes;
    if (key.op == CommOp::kRoutes || entry.bytes == 0) continue;
    const trace::TotalKey same{static_cast<uint8_t>(key.axis), static_cast<uint8_t>(key.op), static_cast<uint8_t>(key.link)};
    EXPECT_EQ(totals[same], (trace::Total{.bytes = entry.bytes, .carried = entry.bytes})) << NameOf(key.axis) << " " << NameOf(key.op);
    totals.erase(same);
  }
  EXPECT_TRUE(totals.empty());
  EXPECT_EQ(run.metadata_bytes(), metadata);
}

// With tracing on, which changes no bit.
void ExpectEqualBits(const std::string& name, std::initializer_list<LayoutSpec> layouts, ActDType act = ActDType::kBF16,
                     int attention_chunk = 256) {
  const Subject s = Open(name, Numerics::kReproducible, act, attention_chunk);
  const std::vector<float> expected = OneRank(s, 3);
  for (const LayoutSpec& l : layouts) {
    SCOPED_TRACE(name + " " + l.mesh + (l.sp ? " sp" : ""));
    InstanceSpec spec = SpecOf(s, l);
    spec.tracing = InstanceSpec::Tracing::kOn;
    const auto group = RankGroup::StartThreads(std::move(spec), {.prediction = RankGroupOptions::Prediction::kOn}).value();
    const auto got = RunSteps(*group, 3);
    ASSERT_TRUE(got.ok()) << got.status().message();
    ASSERT_EQ(got->size(), expected.size());
    EXPECT_EQ(std::memcmp(got->data(), expected.data(), expected.size() * sizeof(float)), 0);
    const GroupStats stats = group->Stats().value();
    EXPECT_EQ(stats.counted, stats.predicted);
    EXPECT_FALSE(stats.counted.empty());
    ExpectAllIsRecorded(*group, stats.counted);
    EXPECT_TRUE(group->Stop().ok());
  }
}

TEST(RankGroup, GroupedQueriesGiveTheBitsOfOneRank) {
  ExpectEqualBits("llama_gqa", {{"tp2"}, {"tp2", true}, {"pp2"}, {"dp2"}, {"dp3"}, {"tp2,pp2", true, 2}, {"pp2,tp2,dp2", true, 2}});
}

TEST(RankGroup, UnevenHeadsBiasesAndNegativeZerosGiveTheBitsOfOneRank) {
  ExpectEqualBits("uneven", {{"tp2"}, {"tp4"}, {"tp5", true}, {"tp9"}, {"tp8,pp2"}, {"pp3,tp2", true}}, ActDType::kF32);
  ExpectEqualBits("uneven", {{"tp2"}, {"tp7"}});
}

TEST(RankGroup, ExpertsAndWholeVectorNormsGiveTheBitsOfOneRank) {
  ExpectEqualBits("olmoe", {{"tp2"}, {"tp4", true}, {"tp2,dp2,pp2", true}});
  ExpectEqualBits("mixtral", {{"tp2", true}, {"dp2"}});
}

TEST(RankGroup, RowsThatTravelToExpertsGiveTheBitsOfOneRank) {
  for (const ActDType act : {ActDType::kF32, ActDType::kBF16, ActDType::kInt8}) {
    ExpectEqualBits("olmoe", {{"dp4", false, 2, {.ep = 4}}, {"tp2,dp2,pp2", true, 4, {.ep = 2, .etp = 2}}, {"tp2", false, 1, {.ep = 2}}}, act);
  }
  ExpectEqualBits("deepseek_v3", {{"tp2,dp2", false, 2, {.ep = 4}}, {"dp2,tp3", true, 2}});
  ExpectEqualBits("gpt_oss", {{"tp2,dp2", true, 2, {.ep = 4}}, {"dp4", false, 1, {.ep = 2, .etp = 2}}});
}

TEST(RankGroup, KeysOnSeveralRanksGiveTheBitsOfOneRank) {
  const auto all_forms = [](const std::string& name, ActDType act) {
    ExpectEqualBits(name, {{"cp2"}, {"cp3,pp2", false, 1, {}, {.form = CpForm::kAllGather}}, {"cp2,dp2", false, 2, {}, {.form = CpForm::kUlysses}},
                           {"cp4", false, 2, {}, {.form = CpForm::kUlyssesRing}}, {"cp3", false, 1, {}, {.form = CpForm::kStriped}}, {"cp4"}}, act, 16);
  };
  for (const ActDType act : {ActDType::kF32, ActDType::kBF16, ActDType::kInt8}) all_forms("llama_gqa", act);
  all_forms("mistral_window", ActDType::kBF16);
  ExpectEqualBits("uneven", {{"tp5,cp2", true}, {"cp3", false, 1, {}, {.form = CpForm::kUlysses}}, {"tp2,cp2,pp3", true, 2, {}, {.form = CpForm::kStriped}}},
                  ActDType::kF32, 16);
  ExpectEqualBits("olmoe", {{"tp2,cp2,dp2", true, 2, {.ep = 4}}, {"cp2,tp2", true, 1, {.ep = 2, .etp = 2}, {.form = CpForm::kUlysses}}}, ActDType::kBF16, 16);
  ExpectEqualBits("deepseek_v3", {{"cp2,dp2", false, 2, {.ep = 4}}, {"tp3,cp2", true, 1, {}, {.form = CpForm::kUlysses}}}, ActDType::kBF16, 16);
  // Shares of heads that begin within a group, and have sinks of their own.
  ExpectEqualBits("gpt_oss", {{"cp3", false, 1, {}, {.form = CpForm::kUlysses}}, {"cp6", false, 1, {}, {.form = CpForm::kUlyssesRing, .ulysses = 3}}}, ActDType::kF32, 16);
  ExpectEqualBits("gpt_oss", {{"tp2,cp2", true, 1, {}, {.form = CpForm::kStriped}}, {"cp4", false, 1, {.ep = 4}, {.form = CpForm::kAllGather}}}, ActDType::kBF16, 16);
}

// Of the logits of all rows those that are wanted.
std::vector<float> Select(const std::vector<float>& all, int64_t vocab, int decode_steps, Wanted wanted) {
  std::vector<float> some;
  auto row = all.begin();
  for (int step = 0; step <= decode_steps; ++step) {
    for (int s = 0; s < 4; ++s) {
      const int64_t rows = step == 0 ? kPrompts[s] : 1;
      row += rows * vocab;
      some.insert(some.end(), row - LogitRows(wanted, s, step, rows) * vocab, row);
    }
  }
  EXPECT_EQ(row, all.end());
  return some;
}

TEST(RankGroup, LogitsOfSomeRowsAreThoseOfAllRows) {
  const auto check = [](const std::string& name, std::initializer_list<LayoutSpec> layouts) {
    const Subject s = Open(name, Numerics::kReproducible, ActDType::kBF16, 16);
    const std::vector<float> want = Select(OneRank(s, 3), s.config.vocab, 3, Wanted::kSome);
    for (const LayoutSpec& l : layouts) {
      SCOPED_TRACE(name + " " + l.mesh + (l.sp ? " sp" : ""));
      const auto group = RankGroup::StartThreads(SpecOf(s, l), {.prediction = RankGroupOptions::Prediction::kOn}).value();
      const auto got = RunSteps(*group, 3, Wanted::kSome);
      ASSERT_TRUE(got.ok()) << got.status().message();
      ASSERT_EQ(got->size(), want.size());
      EXPECT_EQ(std::memcmp(got->data(), want.data(), want.size() * sizeof(float)), 0);
      const GroupStats stats = group->Stats().value();
      EXPECT_EQ(stats.counted, stats.predicted);
    }
    const auto alone = AdaptModel(Model::LoadShard(s.store, s.config, s.options, Layout::Whole(s.shape), 0).value());
    EXPECT_EQ(std::memcmp(RunSteps(*alone, 3, Wanted::kSome).value().data(), want.data(), want.size() * sizeof(float)), 0);
  };
  check("llama_gqa", {{"tp2", true}, {"pp2"}, {"dp3"}, {"tp2,dp2,pp2", true, 2}, {"cp2"},
                      {"cp3,pp2", false, 1, {}, {.form = CpForm::kAllGather}}, {"cp2", false, 1, {}, {.form = CpForm::kStriped}}});
  check("olmoe", {{"dp4", false, 2, {.ep = 4}}, {"tp2,cp2,dp2", true, 2, {.ep = 4}}});
  check("deepseek_v3", {{"tp2,dp2", false, 2, {.ep = 4}}, {"tp3,pp2", true}});
}

TEST(RankGroup, ARankThatIsStuckWhileKeysGoRoundIsNamed) {
  InstanceSpec spec = SpecOf(Open("llama_gqa", Numerics::kReproducible, ActDType::kBF16, 16), {"cp3"});
  const auto release = std::make_shared<std::atomic<bool>>(false);
  spec.before_step = [release](int rank, int64_t step) {
    if (rank != 2 || step != 0) return;
    while (!release->load()) std::this_thread::sleep_for(10ms);
  };
  const auto group = RankGroup::StartThreads(std::move(spec), {.timeout = 500ms}).value();
  const auto got = RunSteps(*group, 3);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.status().message(), HasSubstr("rank 2"));
  EXPECT_THAT(got.status().message(), HasSubstr("cp"));
  EXPECT_THAT(got.status().message(), HasSubstr("layer 0"));
  release->store(true);
}

TEST(RankGroup, ARankThatIsStuckWhileOthersDispatchIsNamed) {
  InstanceSpec spec = SpecOf(Open("olmoe"), {"dp4", false, 2, {.ep = 4}});
  const auto release = std::make_shared<std::atomic<bool>>(false);
  spec.before_step = [release](int rank, int64_t step) {
    if (rank != 2 || step != 1) return;
    while (!release->load()) std::this_thread::sleep_for(10ms);
  };
  const auto group = RankGroup::StartThreads(std::move(spec), {.timeout = 500ms}).value();
  const auto got = RunSteps(*group, 3);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.status().message(), HasSubstr("rank 2"));
  EXPECT_THAT(got.status().message(), HasSubstr("routes"));
  EXPECT_THAT(got.status().message(), HasSubstr("layer 0"));
  release->store(true);
}

// The report that follows a step is part of it: a rank that is stuck there fails the step.
TEST(RankGroup, ARankThatIsStuckInTheReportOfLoadFailsTheStep) {
  InstanceSpec spec = SpecOf(Open("olmoe"), {"dp2", false, 1, {.ep = 2}});
  const auto release = std::make_shared<std::atomic<bool>>(false);
  spec.before_report = [release](int rank) {
    while (rank == 1 && !release->load()) std::this_thread::sleep_for(10ms);
  };
  const auto group = RankGroup::StartThreads(std::move(spec), {.timeout = 500ms}).value();
  const auto got = RunSteps(*group, 0);
  release->store(true);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.status().message(), HasSubstr("rank 1"));
  EXPECT_FALSE(group->health().ok());
}

TEST(RankGroup, SinksAndBiasesOfExpertsGiveTheBitsOfOneRank) {
  ExpectEqualBits("gpt_oss", {{"tp2"}, {"tp4", true}, {"tp3,pp2"}, {"tp2,dp2", true}});
  ExpectEqualBits("gpt_oss_mxfp4", {{"tp4", true}, {"pp2"}});
}

TEST(RankGroup, TypesOfActivationsGiveTheBitsOfOneRank) {
  for (const ActDType act : {ActDType::kF32, ActDType::kInt8}) ExpectEqualBits("llama_gqa", {{"tp2", true}, {"tp2,pp2"}}, act);
}

TEST(RankGroup, StuckRankEndsTheInstanceAndIsNamed) {
  const Subject s = Open("llama_gqa");
  for (const int stuck : {0, 1}) {
    InstanceSpec spec = SpecOf(s, {"tp2"});
    // Shared: the stuck thread outlives this scope.
    const auto release = std::make_shared<std::atomic<bool>>(false);
    spec.before_step = [stuck, release](int rank, int64_t step) {
      if (rank != stuck || step != 2) return;
      while (!release->load()) std::this_thread::sleep_for(10ms);
    };
    const auto start = std::chrono::steady_clock::now();
    const auto group = RankGroup::StartThreads(std::move(spec), {.timeout = 500ms}).value();
    const auto got = RunSteps(*group, 4);
    ASSERT_FALSE(got.ok());
    EXPECT_THAT(got.status().message(), HasSubstr("rank " + std::to_string(stuck)));
    EXPECT_THAT(got.status().message(), HasSubstr("step 2"));
    EXPECT_LT(std::chrono::steady_clock::now() - start, 60s);
    // Nothing goes on after a failure.
    const std::vector<StepBatch> idle(1);
    EXPECT_FALSE(group->Forward(idle).ok());
    release->store(true);
  }
}

TEST(RankGroup, RankWithoutMemorySaysSoOnTheLeader) {
  const auto group = RankGroup::StartThreads(SpecOf(Open("llama_gqa"), {"tp2"}), {}).value();
  const Status status = group->AllocateKv(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  // And the instance is still there.
  EXPECT_TRUE(RunSteps(*group, 1).ok());
}

TEST(RankMessages, CommandsComeThroughAndDamageIsFound) {
  RankCommand command{.kind = CommandKind::kStep, .step = 9};
  command.batches.resize(2);
  command.batches[1].tokens = {4, 5, 6};
  command.batches[1].sequences.push_back({.first_position = 2, .rows = 3, .logit_rows = 1, .blocks = {8, 9}});
  command.record_routes = true;
  command.forced.replicas = {{{1, 2}, {}}, {}};
  std::vector<std::byte> bytes;
  Encode(command, &bytes);
  const RankCommand back = DecodeCommand(bytes).value();
  EXPECT_EQ(back.step, 9);
  ASSERT_EQ(back.batches.size(), 2u);
  EXPECT_EQ(back.batches[1].tokens, command.batches[1].tokens);
  EXPECT_EQ(back.batches[1].sequences[0].blocks, (std::vector<int32_t>{8, 9}));
  EXPECT_TRUE(back.record_routes);
  EXPECT_EQ(back.forced.replicas, command.forced.replicas);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeCommand(std::span(bytes).first(length)).ok()) << length;
  }
}

TEST(RankMessages, TracesComeThroughAndDamageIsFound) {
  trace::Recorder recorder(3);
  const int members[] = {1, 3};
  recorder.AddGroup(8, members);
  recorder.BeginMicroBatch({.step = 2, .micro_batch = 1, .end_layer = 4, .own_end = 2, .rows = {{0, 7}, {0, 8}}});
  recorder.EnterLayer(2);
  recorder.CarryRows(trace::Phase::kAttentionSum, 8);
  recorder.Begin();
  recorder.Sent({.member = 0, .to = 1, .group = 8, .bytes = 16});
  recorder.Attend(1, 2, 8, 2, {1});
  recorder.RestKvOfAll(1, 3, 10);
  recorder.SentMetadata(5);
  std::vector<std::byte> bytes;
  Encode(recorder.Take(), &bytes);
  const trace::RankTrace back = DecodeTrace(bytes).value();
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.metadata_bytes, 5);
  ASSERT_EQ(back.messages.size(), 1u);
  EXPECT_EQ(back.messages[0].at.layer, 2);
  EXPECT_EQ(back.messages[0].at.phase, trace::Phase::kAttentionSum);
  ASSERT_EQ(back.loads.size(), 2u);
  EXPECT_EQ(back.loads[1].row.number, 1);
  EXPECT_EQ(back.rows.at(0).rows.at(1).position, 8);
  EXPECT_EQ(back.kv.at(0).head_end, 3);
  EXPECT_EQ(back.attendance.at(0).stays, (std::vector<int32_t>{1}));
  EXPECT_EQ(back.groups.at(0).ranks, (std::vector<int32_t>{1, 3}));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeTrace(std::span(bytes).first(length)).ok()) << length;
  }
}

}  // namespace
}  // namespace sixfold
