// What is planned from headers against what loading takes.
#include "model/memory_plan.h"

#include <gtest/gtest.h>

#include "kv/storage.h"
#include "mesh/cluster.h"
#include "model/loader.h"
#include "model/micro_batch.h"
#include "model/shape.h"
#include "model/stage.h"

namespace sixfold {
namespace {

struct Subject {
  std::unique_ptr<WeightStore> store;
  ModelConfig config;
  ModelOptions options;
  ModelShape shape;

  Subject(const std::string& model, ActDType act) {
    const std::string path = "tests/golden/" + model;
    store = WeightStore::Open(path).value();
    config = ConfigFor(*store, path).value();
    options = {.act = act, .isa = DetectIsa(), .reduction_leaves = 4};
    shape = ShapeOf(*store, config, options).value();
  }

  Layout Cut(const std::string& mesh, bool sequence_parallel = false) const {
    LayoutOptions wanted{.mesh = Mesh::Parse(mesh).value(), .sequence_parallel = sequence_parallel};
    wanted.cluster = Cluster::EqualNodes(wanted.mesh.world(), 1).value();
    return Layout::Make(shape, wanted).value();
  }

  std::vector<RankMemory> Plan(const Layout& layout, const MemoryWork& work) const {
    return PlanMemory(*store, config, options, layout, work).value();
  }
};

void Add(const std::vector<float>& v, ShardBytes* out) {
  out->vectors += static_cast<int64_t>(v.size() * sizeof(float));
}

void Add(const PackedMatrix& m, ShardBytes* out) {
  out->packed += static_cast<int64_t>(m.stream.size());
  out->mapped += static_cast<int64_t>(Buffer::MappedBytes(m.stream.size()));
}

ShardBytes Held(const ModelWeights& w) {
  ShardBytes out;
  Add(w.final_norm, &out);
  Add(w.head, &out);
  for (const LayerWeights& l : w.layers) {
    for (const auto* v :
         {&l.attention_norm, &l.ffn_norm, &l.q_norm, &l.k_norm, &l.q_bias, &l.k_bias, &l.v_bias,
          &l.o_bias, &l.gate_bias, &l.up_bias, &l.down_bias, &l.q_a_norm, &l.kv_a_norm, &l.q_a_bias,
          &l.kv_a_bias, &l.choice_bias, &l.router_bias, &l.sinks}) {
      Add(*v, &out);
    }
    for (const PackedMatrix* m :
         {&l.q, &l.k, &l.v, &l.q_a, &l.kv_a, &l.gate, &l.up, &l.router, &l.shared_gate, &l.shared_up})
      Add(*m, &out);
    for (const std::vector<PackedMatrix>* heads : {&l.absorb_k, &l.absorb_v}) {
      for (const PackedMatrix& m : *heads) Add(m, &out);
    }
    for (const CutMatrix* cut : {&l.o, &l.down, &l.shared_down}) {
      for (const PackedMatrix& m : *cut) Add(m, &out);
    }
    for (const ExpertWeights& e : l.experts) {
      Add(e.gate, &out);
      Add(e.up, &out);
      for (const auto* v : {&e.gate_bias, &e.up_bias, &e.down_bias}) Add(*v, &out);
      for (const PackedMatrix& m : e.down) Add(m, &out);
    }
  }
  return out;
}

struct Case {
  const char* model;
  ActDType act;
  std::vector<std::string> meshes;
};

class PlannedShard : public ::testing::TestWithParam<Case> {};

TEST_P(PlannedShard, IsWhatLoadingTakes) {
  const Subject s(GetParam().model, GetParam().act);
  ThreadPool pool(1);
  for (const std::string& mesh : GetParam().meshes) {
    const Layout layout = s.Cut(mesh);
    const MemoryWork work{
        .step_rows = {40}, .wanted_rows_max = 40, .positions_max = 64, .kv_blocks = 7};
    const std::vector<RankMemory> plan = s.Plan(layout, work);
    ASSERT_EQ(static_cast<int>(plan.size()), layout.world());
    for (int rank = 0; rank < layout.world(); ++rank) {
      SCOPED_TRACE(testing::Message() << mesh << " rank " << rank);
      const ModelWeights loaded =
          LoadWeights(*s.store, s.config, s.options, layout, rank, pool).value();
      const ShardBytes held = Held(loaded),
                       measured = MeasureShard(*s.store, s.config, s.options, layout, rank).value();
      EXPECT_EQ(measured.packed, loaded.packed_bytes);
      EXPECT_EQ(measured.packed, held.packed);
      EXPECT_EQ(measured.mapped, held.mapped);
      EXPECT_EQ(measured.vectors, held.vectors);
      EXPECT_EQ(plan[rank].shard, held.total());
      const RankShard own = layout.Shard(rank);
      EXPECT_EQ(plan[rank].kv, KvStorage::Create(KvGeometryOf(layout, own), 7)->bytes());
      EXPECT_EQ(plan[rank].embedding > 0, own.first_stage);
      EXPECT_EQ(plan[rank].logits > 0, (own.last_stage && own.dp == 0) || rank == 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, PlannedShard,
    ::testing::Values(
        Case{"llama_gqa", ActDType::kBF16, {"tp1", "tp2", "tp4", "tp2,pp2", "tp2,dp2"}},
        Case{"llama_bias", ActDType::kF32, {"tp1", "tp2"}},
        Case{"llama_odd", ActDType::kInt8, {"tp1", "tp2"}},
        Case{"qwen3", ActDType::kBF16, {"tp2", "pp2"}},
        Case{"qwen3_fp8", ActDType::kBF16, {"tp1", "pp2"}},
        Case{"llama_gguf_k/model.gguf", ActDType::kBF16, {"tp1"}},
        Case{"llama_gguf_q32/model.gguf", ActDType::kBF16, {"tp1", "tp2"}},
        Case{"mixtral_gguf_q32/model.gguf", ActDType::kBF16, {"tp1", "tp2"}},
        Case{"qwen3_moe_mixed", ActDType::kBF16, {"tp1", "tp2", "pp2"}},
        Case{"olmoe", ActDType::kF32, {"tp1", "tp2"}},
        Case{"deepseek_v2_group", ActDType::kF32, {"tp1", "tp4", "tp2,pp2"}},
        Case{"deepseek_v3_bf16", ActDType::kBF16, {"tp1", "tp4", "tp2,pp3"}},
        Case{"deepseek_v3_fp8", ActDType::kBF16, {"tp1", "tp3"}},
        Case{"gpt_oss", ActDType::kBF16, {"tp1", "tp2", "pp2"}},
        Case{"gpt_oss_mxfp4", ActDType::kBF16, {"tp1", "tp3"}}),
    [](const auto& info) {
      std::string name = info.param.model;
      return name.substr(0, name.find('/'));
    });

TEST(MemoryPlan, SharesShrinkWithTheRanks) {
  const Subject s("llama_gqa", ActDType::kBF16);
  const MemoryWork work{
      .step_rows = {256}, .wanted_rows_max = 256, .positions_max = 256, .kv_blocks = 16};
  const RankMemory whole = s.Plan(s.Cut("tp1"), work)[0];
  EXPECT_EQ(whole.comm, 0);
  const std::vector<RankMemory> halves = s.Plan(s.Cut("tp2"), work);
  EXPECT_LT(halves[0].shard, whole.shard);
  EXPECT_EQ(halves[0].kv + halves[1].kv, whole.kv);
  EXPECT_GT(halves[0].comm, 0);
  EXPECT_GT(halves[0].logits, halves[1].logits);  // the leader gathers
  const std::vector<RankMemory> shared = s.Plan(s.Cut("tp2", true), work);
  EXPECT_LT(shared[1].activations, halves[1].activations);
}

TEST(MemoryPlan, WhatCannotHappenTakesNothing) {
  const Subject s("llama_gqa", ActDType::kBF16);
  MemoryWork work{
      .step_rows = {256}, .wanted_rows_max = 256, .positions_max = 256, .kv_blocks = 16};
  const std::vector<RankMemory> idle = s.Plan(s.Cut("dp2"), work);
  EXPECT_EQ(idle[1].activations, 0);
  EXPECT_EQ(idle[1].logits, 0);
  EXPECT_EQ(idle[1].kv, idle[0].kv);
  work.busy_replicas = 2;
  EXPECT_GT(s.Plan(s.Cut("dp2"), work)[1].activations, 0);
  const int64_t all = idle[0].embedding;
  work.embedded_tokens_max = 1;
  EXPECT_LE(s.Plan(s.Cut("dp2"), work)[0].embedding, all);
}

TEST(MemoryPlan, EveryFirstStageRankReadsTheWholeEmbedding) {
  const Subject s("llama_gqa", ActDType::kBF16);
  const MemoryWork work{
      .step_rows = {256}, .wanted_rows_max = 256, .positions_max = 256, .kv_blocks = 16};
  const int64_t whole = s.Plan(s.Cut("tp1"), work)[0].embedding;
  const std::vector<RankMemory> plan = s.Plan(s.Cut("tp2,pp2"), work);
  for (const int rank : {0, 1}) EXPECT_EQ(plan[rank].embedding, whole);
  for (const int rank : {2, 3}) EXPECT_EQ(plan[rank].embedding, 0);
}

// Bytes of the experts' matrices in the files.
int64_t ExpertBytesOf(const Subject& s) {
  int64_t bytes = 0;
  for (const TensorInfo& t : s.store->tensors()) {
    if (t.name.find(".experts.") != std::string::npos) bytes += static_cast<int64_t>(t.bytes);
  }
  return bytes;
}

TEST(DealtExperts, EachIsReadOnceAndHeldByOneRank) {
  // 7 experts on 7 places, in two parts each; all else every rank has for itself.
  Subject s("olmoe", ActDType::kF32);
  ThreadPool pool(1);
  const auto measure = [&](const Layout& layout, int rank) {
    return MeasureShard(*s.store, s.config, s.options, layout, rank).value();
  };
  const int64_t experts = ExpertBytesOf(s);
  ASSERT_GT(experts, 0);
  const int64_t others = measure(s.Cut("tp1"), 0).read - experts;
  for (const auto& [ep, etp] : {std::pair{7, 1}, std::pair{7, 2}, std::pair{2, 7}, std::pair{1, 2}}) {
    LayoutOptions wanted{.mesh = Mesh::Parse("dp14").value()};
    wanted.cluster = Cluster::EqualNodes(14, 2).value();
    wanted.experts = {.ep = ep, .etp = etp};
    const Layout layout = Layout::Make(s.shape, wanted).value();
    int64_t read = 0;
    std::vector<int> holders(7, 0);
    for (int rank = 0; rank < layout.world(); ++rank) {
      const ShardBytes measured = measure(layout, rank);
      const ModelWeights loaded = LoadWeights(*s.store, s.config, s.options, layout, rank, pool).value();
      EXPECT_EQ(Held(loaded).packed, measured.packed);
      EXPECT_EQ(loaded.packed_bytes, measured.packed);
      read += measured.read;
      for (const int e : loaded.layers[0].expert_ids) ++holders[e];
    }
    const int copies = layout.expert_mesh().edp();
    EXPECT_EQ(read, 14 * others + copies * experts) << "ep " << ep << " etp " << etp;
    EXPECT_EQ(holders, std::vector<int>(7, copies * etp));
  }
}

TEST(WorstSteps, NoSmallerStepHasALargerMicroBatch) {
  for (const int pp : {1, 2, 3, 4}) {
    for (int64_t rows_max = 1; rows_max < 1500; rows_max += rows_max < 600 ? 1 : 37) {
      const auto largest = [&](int64_t rows) {
        const int count = MicroBatchCount(rows, pp);
        return (rows + count - 1) / count;
      };
      int64_t worst = 0, any = 0;
      for (const int64_t rows : WorstSteps(rows_max, pp)) worst = std::max(worst, largest(rows));
      for (int64_t rows = 1; rows <= rows_max; ++rows) any = std::max(any, largest(rows));
      ASSERT_EQ(worst, any) << rows_max << " rows, pp " << pp;
    }
  }
}

}  // namespace
}  // namespace sixfold
