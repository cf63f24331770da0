// Times of attention and of the row operations, one JSON object a line; medians of repeated runs. With one thread these
// are CPU times, which other load on the machine disturbs less; with more they are wall times.
//   ops_bench [--threads N] [--seconds S] [--isa NAME] [--case prefill|decode|rows]
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/math.h"
#include "kernels/ops.h"
#include "tensor/buffer.h"

namespace sixfold {
namespace {

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Options {
  int threads = 1;
  double seconds = 10;  // for all cases together
  std::string isa, only;
};

struct AttentionCase {
  const char* name;
  int heads, kv_heads, dim;
  int64_t context, rows;
  bool bf16;
};

constexpr AttentionCase kAttentionCases[] = {
    {"prefill", 9, 3, 64, 0, 512, true},    {"prefill", 9, 3, 64, 0, 2048, true},
    {"prefill", 9, 3, 64, 0, 2048, false},  {"prefill", 32, 8, 128, 0, 512, true},
    {"decode", 9, 3, 64, 511, 1, true},     {"decode", 9, 3, 64, 4095, 1, true},
    {"decode", 9, 3, 64, 4095, 1, false},   {"decode", 32, 8, 128, 4095, 1, true},
    {"decode", 32, 8, 128, 16383, 1, true}, {"decode", 16, 16, 128, 4095, 1, true},
};

template <typename F>
double MedianSeconds(const Options& options, double budget, const F& run) {
  const clockid_t clock = options.threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<double> times;
  const double start = Seconds(CLOCK_MONOTONIC);
  while (times.size() < 3 || Seconds(CLOCK_MONOTONIC) - start < budget) {
    const double begin = Seconds(clock);
    run();
    times.push_back(Seconds(clock) - begin);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

std::vector<float> Random(int64_t n) {
  std::mt19937 bits(1);
  std::vector<float> x(n);
  for (float& value : x) value = static_cast<float>(bits()) / 4294967296.0f - 0.5f;
  return x;
}

Buffer Allocate(int64_t bytes) {
  Result<Buffer> buffer = Buffer::Allocate(bytes, "benchmark pages");
  SF_CHECK(buffer.ok());
  return std::move(buffer).value();
}

void RunAttention(const AttentionCase& c, Ops& ops, const Options& options, double budget) {
  const int64_t length = c.context + c.rows, pages = (length + kPageTokens - 1) / kPageTokens;
  const int64_t elements = pages * kPageTokens * c.kv_heads * c.dim;
  const std::vector<float> q = Random(c.rows * c.heads * c.dim), values = Random(1 << 16);
  std::vector<float> out(q.size());
  // In large pages, as the engine holds them.
  Buffer k = Allocate(elements * (c.bf16 ? 2 : 4)), v = Allocate(elements * (c.bf16 ? 2 : 4));
  for (Buffer* buffer : {&k, &v}) {
    for (int64_t i = 0; i < elements; ++i) {
      const float value = values[i & 0xffff];
      if (c.bf16)
        buffer->as<uint16_t>()[i] = Bf16FromFloat(value);
      else
        buffer->as<float>()[i] = value;
    }
  }
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  const AttentionSequence sequence{.rows = c.rows, .first_position = c.context, .pages = table.data()};
  const AttentionArgs args{.q = q.data(),
                           .out = out.data(),
                           .heads = c.heads,
                           .kv = {k.data(), v.data(), c.bf16, c.kv_heads, c.dim, c.dim},
                           .scale = 1.0f / std::sqrt(static_cast<float>(c.dim)),
                           .sequences = {&sequence, 1}};
  const double seconds = MedianSeconds(options, budget, [&] { ops.Attention(args); });
  const double keys = static_cast<double>(c.rows) * (c.context + (c.rows + 1) / 2.0);  // that queries see
  const double bytes = 2.0 * static_cast<double>(length) * c.kv_heads * c.dim * (c.bf16 ? 2 : 4);
  std::printf(
      "{\"bench\":\"attention\",\"case\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"dim\":%d,\"context\":%lld,\"rows\":%lld,"
      "\"kv\":\"%s\",\"threads\":%d,\"us\":%.1f,\"gflops\":%.1f,\"kv_gb_per_s\":%.2f}\n",
      c.name, c.heads, c.kv_heads, c.dim, static_cast<long long>(length), static_cast<long long>(c.rows),
      c.bf16 ? "bf16" : "f32", options.threads, seconds * 1e6, 4.0 * keys * c.heads * c.dim / seconds * 1e-9,
      bytes / seconds * 1e-9);
  std::fflush(stdout);
}

template <typename F>
void RunRows(const char* name, int64_t rows, int64_t n, const Options& options, double budget, const F& run) {
  const double seconds = MedianSeconds(options, budget, run);
  std::printf("{\"bench\":\"%s\",\"rows\":%lld,\"n\":%lld,\"threads\":%d,\"us\":%.2f,\"ns_per_element\":%.3f}\n", name,
              static_cast<long long>(rows), static_cast<long long>(n), options.threads, seconds * 1e6,
              seconds * 1e9 / static_cast<double>(rows * n));
  std::fflush(stdout);
}

void RunAll(const Options& options) {
  ThreadPool pool(options.threads, SetFloatMode);
  const Isa isa = options.isa.empty() ? DetectIsa() : IsaFromName(options.isa).value_or(DetectIsa());
  Ops ops(isa, pool);
  const double budget = options.seconds / (std::size(kAttentionCases) + 5);
  for (const AttentionCase& c : kAttentionCases)
    if (options.only.empty() || options.only == c.name) RunAttention(c, ops, options, budget);
  if (!options.only.empty() && options.only != "rows") return;
  for (const int64_t rows : {1, 128}) {
    std::vector<float> x = Random(rows * 1536), y = x, weight = Random(1536), out(x.size());
    RunRows("rms_norm", rows, 576, options, budget / 2,
            [&] { ops.RmsNorm(x.data(), 576, rows, 576, weight.data(), 1e-5f, out.data(), 576); });
    RunRows("silu_mul", rows, 1536, options, budget / 2,
            [&] { ops.SiluMul(x.data(), y.data(), rows * 1536, out.data()); });
  }
  const std::vector<float> logits = Random(49152);
  volatile float sink = 0;
  RunRows("log_softmax", 1, 49152, options, budget / 2, [&] { sink = LogSoftmax(logits).log_sum; });
  RunRows("arg_max", 1, 49152, options, budget / 2, [&] { sink = static_cast<float>(ArgMax(logits)); });
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) {
  sixfold::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) options.threads = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--seconds") == 0) options.seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--isa") == 0) options.isa = argv[i + 1];
    if (std::strcmp(argv[i], "--case") == 0) options.only = argv[i + 1];
  }
  sixfold::RunAll(options);
  return 0;
}
