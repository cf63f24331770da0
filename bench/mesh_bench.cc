// What tensor parallelism over threads costs and brings: two one-thread ranks at tp 2 against one rank of one and of two
// threads, reproducible against fast. usage: mesh_bench MODEL [--prompt 512] [--decode 64] [--repeat 5]
// Prints one JSON object: medians of tokens per second over rounds in which all contenders take turns, and their ratios.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/rank_group.h"
#include "kernels/ops.h"
#include "model/shape.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Contender {
  std::string name;
  std::unique_ptr<StepModel> model;
  std::vector<double> prefill, decode;  // tokens per second, one a round
};

double Feed(StepModel& model, int64_t first, const std::vector<TokenId>& tokens, TokenId* next) {
  StepSequence s{.first_position = first, .rows = static_cast<int64_t>(tokens.size()), .logit_rows = 1, .blocks = {}};
  for (int32_t b = 0; b < BlocksFor(first + s.rows); ++b) s.blocks.push_back(b);
  const std::vector<StepBatch> batches = {{.tokens = tokens, .sequences = {s}}};
  const double start = Seconds();
  const auto logits = model.Forward(batches);
  const double seconds = Seconds() - start;
  *next = ArgMax(logits.value());
  return seconds;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(int argc, char** argv) {
  int64_t prompt = 512, decode = 64;
  int repeat = 5;
  if (argc < 2) {
    std::fprintf(stderr, "usage: mesh_bench MODEL [--prompt N] [--decode N] [--repeat N]\n");
    return 2;
  }
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--prompt") prompt = std::atoll(argv[i + 1]);
    else if (flag == "--decode") decode = std::atoll(argv[i + 1]);
    else if (flag == "--repeat") repeat = std::atoi(argv[i + 1]);
    else return std::fprintf(stderr, "mesh_bench: unknown flag %s\n", argv[i]), 2;
  }
  auto opened = WeightStore::Open(argv[1]);
  if (!opened.ok()) return std::fprintf(stderr, "%s\n", opened.status().message().c_str()), 3;
  const std::shared_ptr<const WeightStore> store = std::move(opened).value();
  auto config = ConfigFor(*store, argv[1]);
  if (!config.ok()) return std::fprintf(stderr, "%s\n", config.status().message().c_str()), 3;

  const auto make = [&](const char* name, const char* mesh_text, int threads, Numerics numerics) {
    const ModelOptions options{.numerics = numerics, .isa = DetectIsa(), .threads = threads};
    const Mesh mesh = Mesh::Parse(mesh_text).value();
    InstanceSpec spec{.store = store,
                      .config = *config,
                      .options = options,
                      .layout = Layout::Make(ShapeOf(*store, *config, options).value(),
                                             {.mesh = mesh, .cluster = Cluster::OneNode(mesh.world())})
                                    .value()};
    Contender c{.name = name};
    if (mesh.world() == 1) {
      c.model = AdaptModel(Model::LoadShard(store, *config, options, spec.layout, 0).value());
    } else {
      c.model = RankGroup::StartThreads(std::move(spec), {}).value();
    }
    SF_CHECK(c.model->AllocateKv(static_cast<int32_t>(BlocksFor(prompt + decode + 16))).ok());
    return c;
  };
  std::vector<Contender> all;
  all.push_back(make("one_rank_one_thread", "tp1", 1, Numerics::kReproducible));
  all.push_back(make("one_rank_two_threads", "tp1", 2, Numerics::kReproducible));
  all.push_back(make("tp2", "tp2", 1, Numerics::kReproducible));
  all.push_back(make("tp2_fast", "tp2", 1, Numerics::kFast));
  all.push_back(make("one_rank_two_threads_fast", "tp1", 2, Numerics::kFast));

  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < prompt; ++i) tokens.push_back(static_cast<TokenId>((i * 7919 + 13) % config->vocab));
  for (int r = 0; r < repeat; ++r) {
    for (Contender& c : all) {
      TokenId next = 0;
      c.prefill.push_back(static_cast<double>(prompt) / Feed(*c.model, 0, tokens, &next));
      double seconds = 0;
      for (int64_t i = 0; i < decode; ++i) seconds += Feed(*c.model, i, {next}, &next);
      c.decode.push_back(static_cast<double>(decode) / seconds);
    }
  }
  std::printf("{\"bench\": \"mesh\", \"model\": \"%s\", \"prompt\": %ld, \"decode\": %ld, \"rounds\": %d", argv[1],
              static_cast<long>(prompt), static_cast<long>(decode), repeat);
  for (const Contender& c : all) {
    std::printf(", \"%s\": {\"prefill\": %.1f, \"decode\": %.1f}", c.name.c_str(), Median(c.prefill), Median(c.decode));
  }
  // Ratios within a round first, so that what disturbs the machine disturbs both sides.
  const auto ratio = [&](const char* name, size_t a, size_t b) {
    std::vector<double> p, d;
    for (int r = 0; r < repeat; ++r) {
      p.push_back(all[a].prefill[r] / all[b].prefill[r]);
      d.push_back(all[a].decode[r] / all[b].decode[r]);
    }
    std::printf(", \"%s\": {\"prefill\": %.3f, \"decode\": %.3f}", name, Median(p), Median(d));
  };
  ratio("tp2_over_one_thread", 2, 0);
  ratio("tp2_over_two_threads", 2, 1);
  ratio("reproducible_over_fast_tp2", 2, 3);
  ratio("reproducible_over_fast_one_rank", 1, 4);
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }
