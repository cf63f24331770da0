// The memory plan against what a step really takes: every allocation of the process is counted, and the steps are so
// large that each term of the plan counts. Nothing here is rounded up to pages: no slack hides a missing term.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/rank_group.h"
#include "kv/block_pool.h"
#include "mesh/cluster.h"
#include "model/memory_plan.h"
#include "model/shape.h"
#include "weights/weight_store.h"

namespace {

std::atomic<int64_t> g_live{0}, g_peak{0};

void* Counted(std::size_t bytes, std::size_t alignment) {
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(bytes)
                : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  const int64_t live = g_live += static_cast<int64_t>(malloc_usable_size(p));
  int64_t peak = g_peak;
  while (live > peak && !g_peak.compare_exchange_weak(peak, live)) {
  }
  return p;
}

void Uncounted(void* p) {
  if (p == nullptr) return;
  g_live -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* p) noexcept { Uncounted(p); }
void operator delete(void* p, std::size_t) noexcept { Uncounted(p); }
void operator delete(void* p, std::align_val_t) noexcept { Uncounted(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { Uncounted(p); }

namespace sixfold {
namespace {

struct Case {
  std::string model, mesh;
  bool sp = false;
  ExpertMeshRequest experts = {};
  ContextOptions context = {};
  ActDType act = ActDType::kF32;
  int64_t sequences = 16, rows = 128;  // of each
  int64_t logit_rows = 1;              // of each sequence
  double planned_max = 1.08;           // times what is measured: how loose an upper bound the plan may be
};

// One step of prompts; all K/V are allocated before.
std::vector<StepBatch> PromptsOf(const Case& c, const StepModel& model, int32_t kv_blocks) {
  const KvPlacement placement = model.kv_placement();
  std::vector<StepBatch> batches(model.replicas());
  for (StepBatch& batch : batches) {
    BlockPool pool(static_cast<int32_t>(placement.UnitsOfPool(kv_blocks)), placement.pools());
    for (int64_t s = 0; s < c.sequences; ++s) {
      std::vector<int32_t> units;
      pool.TakeFor(placement, {.rows = c.rows, .batch_row = static_cast<int64_t>(batch.tokens.size())}, {}, &units);
      batch.sequences.push_back(
          {.rows = c.rows, .logit_rows = c.logit_rows, .blocks = BlockTable(placement, units, c.rows, kv_blocks)});
      for (int64_t r = 0; r < c.rows; ++r)
        batch.tokens.push_back(static_cast<TokenId>((31 * r + 7 * s) % model.vocab()));
    }
  }
  return batches;
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.model << " " << c.mesh << (c.sp ? " sp" : ""); }

class MeasuredMemory : public testing::TestWithParam<Case> {};

TEST_P(MeasuredMemory, IsWhatWasPlanned) {
  const Case& c = GetParam();
  const std::string path = "tests/golden/" + c.model;
  const std::shared_ptr<const WeightStore> store(WeightStore::Open(path).value());
  const ModelConfig config = ConfigFor(*store, path).value();
  const ModelOptions options{.act = c.act,
                             .isa = std::min(DetectIsa(), Isa::kAvx2),  // whose scratch every machine has
                             .attention_chunk = 64};
  const Mesh mesh = Mesh::Parse(c.mesh).value();
  const Layout layout =
      Layout::Make(ShapeOf(*store, config, options).value(), {.mesh = mesh,
                                                              .cluster = Cluster::OneNode(mesh.world()),
                                                              .sequence_parallel = c.sp,
                                                              .experts = c.experts,
                                                              .context = c.context})
          .value();
  // As the program starts them: one rank needs no group.
  std::unique_ptr<StepModel> model;
  if (layout.world() == 1) {
    model = AdaptModel(Model::LoadShard(store, config, options, layout, 0).value());
  } else {
    model =
        RankGroup::StartThreads({.store = store, .config = config, .options = options, .layout = layout}, {}).value();
  }
  const auto kv_blocks = static_cast<int32_t>(model->kv_placement().BlocksOfOwner(c.rows, 2 * c.sequences));
  ASSERT_TRUE(model->AllocateKv(kv_blocks).ok());
  const std::vector<StepBatch> batches = PromptsOf(c, *model, kv_blocks);
  const int64_t before = g_live;
  g_peak = before;
  ASSERT_TRUE(model->Forward(batches).ok());
  const int64_t measured = g_peak - before;

  const MemoryWork work{.step_rows = {c.sequences * c.rows},
                        .wanted_rows_max = c.sequences * c.logit_rows,
                        .sequences_max = c.sequences,
                        .positions_max = c.rows,
                        .busy_replicas = layout.dp(),
                        .kv_blocks = kv_blocks};
  int64_t activations = 0, logits = 0, comm = 0;
  const std::vector<RankMemory> plan = PlanMemory(*store, config, options, layout, work).value();
  for (const RankMemory& rank : plan) {
    activations += rank.activations;
    logits += rank.logits;
    comm += rank.comm;
  }
  // Eager messages exist between processes only.
  if (layout.world() > 1) comm -= int64_t{layout.world()} * layout.world() * (64 << 10);
  const int64_t planned = activations + logits + comm;
  std::printf("measured %.3f MiB, planned %.3f (activations %.3f, logits %.3f, comm %.3f): %.3f\n",
              measured / 1048576.0, planned / 1048576.0, activations / 1048576.0, logits / 1048576.0, comm / 1048576.0,
              static_cast<double>(planned) / static_cast<double>(measured));
  EXPECT_GE(planned, measured);
  EXPECT_LE(static_cast<double>(planned), c.planned_max * static_cast<double>(measured));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MeasuredMemory,
    testing::Values(Case{.model = "llama_gqa", .mesh = "tp1"},
                    Case{.model = "llama_gqa", .mesh = "tp1", .logit_rows = 128},
                    Case{.model = "llama_gqa", .mesh = "tp2"}, Case{.model = "llama_gqa", .mesh = "tp2", .sp = true},
                    Case{.model = "llama_gqa", .mesh = "pp2", .planned_max = 1.2},
                    Case{.model = "llama_gqa", .mesh = "pp2", .logit_rows = 128, .planned_max = 1.2},
                    Case{.model = "llama_gqa", .mesh = "dp2", .logit_rows = 128, .planned_max = 1.15},
                    Case{.model = "llama_gqa", .mesh = "cp2", .planned_max = 2.8},
                    Case{
                        .model = "llama_gqa", .mesh = "cp2", .context = {.form = CpForm::kStriped}, .planned_max = 2.8},
                    Case{.model = "llama_bf16", .mesh = "tp1", .act = ActDType::kBF16},
                    Case{.model = "llama_odd", .mesh = "tp1", .act = ActDType::kInt8},
                    Case{.model = "olmoe", .mesh = "tp1", .planned_max = 1.3},
                    Case{.model = "olmoe", .mesh = "tp2", .planned_max = 1.3},
                    Case{.model = "olmoe", .mesh = "tp2", .sp = true, .planned_max = 1.3},
                    Case{.model = "olmoe", .mesh = "dp2", .experts = {.ep = 2}, .planned_max = 1.9},
                    Case{.model = "deepseek_v3", .mesh = "tp1", .planned_max = 1.35},
                    Case{.model = "deepseek_v3", .mesh = "tp2", .planned_max = 1.35},
                    Case{.model = "gpt_oss", .mesh = "tp1", .planned_max = 1.25}));

}  // namespace
}  // namespace sixfold
