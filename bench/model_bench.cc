// Prefill and decode speed of a whole model. usage: model_bench MODEL [--dtype bf16|f32|int8] [--isa NAME] [--threads N]
// [--prompt 512] [--decode 128] [--repeat 3]. Prints JSON: tokens per second of each repetition.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "weights/weight_store.h"

namespace sixfold {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Feeds rows of one sequence that starts at `first`; returns the seconds of the pass.
double Feed(Model& model, KvStorage& kv, int64_t first, const std::vector<TokenId>& tokens, TokenId* next) {
  StepSequence s{.first_position = first, .rows = static_cast<int64_t>(tokens.size()), .logit_rows = 1, .blocks = {}};
  for (int32_t b = 0; b < BlocksFor(first + s.rows); ++b) s.blocks.push_back(b);
  const double start = Seconds();
  const auto logits = model.Forward({.tokens = tokens, .sequences = {s}}, kv);
  const double seconds = Seconds() - start;
  *next = ArgMax(logits);
  return seconds;
}

int Main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {{"--dtype", "bf16"}, {"--isa", ""}, {"--threads", "2"},
                                              {"--prompt", "512"}, {"--decode", "128"}, {"--repeat", "3"}};
  if (argc < 2) {
    std::fprintf(stderr, "usage: model_bench MODEL [--dtype bf16|f32|int8] [--isa NAME] [--threads N] [--prompt N] "
                         "[--decode N] [--repeat N]\n");
    return 2;
  }
  for (int i = 2; i + 1 < argc; i += 2) {
    if (!flags.contains(argv[i])) {
      std::fprintf(stderr, "model_bench: unknown flag %s\n", argv[i]);
      return 2;
    }
    flags[argv[i]] = argv[i + 1];
  }
  auto store = WeightStore::Open(argv[1]);
  if (!store.ok()) return std::fprintf(stderr, "%s\n", store.status().message().c_str()), 3;
  auto config = ConfigFor(**store, argv[1]);
  if (!config.ok()) return std::fprintf(stderr, "%s\n", config.status().message().c_str()), 3;
  ModelOptions options{.isa = IsaFromName(flags["--isa"]).value_or(DetectIsa()),
                       .threads = std::max(1, std::atoi(flags["--threads"].c_str()))};
  options.act = flags["--dtype"] == "f32" ? ActDType::kF32 : flags["--dtype"] == "int8" ? ActDType::kInt8 : ActDType::kBF16;
  auto loaded = Model::Load(std::move(store).value(), *config, options);
  if (!loaded.ok()) return std::fprintf(stderr, "%s\n", loaded.status().message().c_str()), 3;
  Model& model = **loaded;
  const int64_t prompt = std::atoll(flags["--prompt"].c_str()), decode = std::atoll(flags["--decode"].c_str());
  KvStorage kv = KvStorage::Create(model.kv_geometry(), static_cast<int32_t>(BlocksFor(prompt + decode + 16))).value();
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < prompt; ++i) tokens.push_back(static_cast<TokenId>((i * 7919 + 13) % model.config().vocab));
  std::string prefill_rates, decode_rates;
  for (int r = 0; r < std::atoi(flags["--repeat"].c_str()); ++r) {
    TokenId next = 0;
    const double prefill = Feed(model, kv, 0, tokens, &next);
    double seconds = 0;
    // llama-bench's tg measures decode from an empty context; so do we.
    for (int64_t i = 0; i < decode; ++i) seconds += Feed(model, kv, i, {next}, &next);
    char text[64];
    std::snprintf(text, sizeof text, "%s%.1f", r ? ", " : "", static_cast<double>(prompt) / prefill);
    prefill_rates += text;
    std::snprintf(text, sizeof text, "%s%.1f", r ? ", " : "", static_cast<double>(decode) / seconds);
    decode_rates += text;
  }
  std::printf("{\"bench\": \"model\", \"model\": \"%s\", \"dtype\": \"%s\", \"isa\": \"%s\", \"threads\": %d, "
              "\"prefill_tokens\": %ld, \"prefill_tokens_per_second\": [%s], \"decode_tokens\": %ld, "
              "\"decode_tokens_per_second\": [%s]}\n",
              argv[1], flags["--dtype"].c_str(), std::string(NameOf(options.isa)).c_str(), options.threads,
              static_cast<long>(prompt), prefill_rates.c_str(), static_cast<long>(decode), decode_rates.c_str());
  return 0;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }
