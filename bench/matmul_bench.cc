// Rates of the matrix products, as one JSON object a line: GFLOP/s, GB/s of weights and the share of a plain read of as
// many bytes. Bounded: each case runs for a fixed share of --seconds.
//   matmul_bench [--threads N] [--seconds S] [--isa NAME] [--format NAME] [--rows M] [--shape NxK] [--clock wall|cpu]
// --clock cpu counts the process's CPU time instead, for one thread on a machine that others use.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/matmul.h"
#include "kernels/testing/random_matrix.h"

namespace sixfold {
namespace {

struct Options {
  int threads = 1;
  double seconds = 20;
  std::string isa, format;
  int64_t rows = 0;
  std::string shape;
  clockid_t clock = CLOCK_MONOTONIC;
};

struct Case {
  DType dtype;
  int64_t n, k, rows;
  ActDType act;
};

double Now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// The best of repeated runs within `budget` seconds, at least two.
template <typename F>
double BestSeconds(clockid_t clock, double budget, const F& f) {
  const double start = Now(CLOCK_MONOTONIC);
  double best = 1e9;
  for (int i = 0; i < 2 || Now(CLOCK_MONOTONIC) - start < budget; ++i) {
    const double begin = Now(clock);
    f();
    best = std::min(best, Now(clock) - begin);
  }
  return best;
}

// GB/s of reading `bytes` once with every member of the team.
double ReadRate(const Buffer& buffer, ThreadPool& pool, clockid_t clock, double budget) {
  using Line = uint64_t __attribute__((vector_size(16)));
  volatile uint64_t sink = 0;
  const auto* lines = buffer.as<Line>();
  const auto count = static_cast<int64_t>(buffer.size() / sizeof(Line) / 8);
  const double seconds = BestSeconds(clock, budget, [&] {
    pool.ParallelFor(count, [&](int64_t begin, int64_t end, int) {
      Line sum[8] = {};
      for (int64_t i = begin * 8; i < end * 8; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] ^= lines[i + j];
      }
      for (const Line& line : sum) sink = sink ^ line[0] ^ line[1];
    });
  });
  return static_cast<double>(buffer.size()) / seconds * 1e-9;
}

void RunCase(const Case& c, Isa isa, ThreadPool& pool, clockid_t clock, double budget) {
  const testing::RandomMatrix m(c.dtype, c.n, c.k, 1);
  const Leaves leaves = Leaves::Whole(c.k);
  auto packed = PackMatrix(m.view, {.act = c.act, .leaves = leaves}, pool);
  if (!packed.ok()) {
    std::fprintf(stderr, "%s\n", packed.status().ToString().c_str());
    std::exit(1);
  }
  MatMul matmul(isa, pool);
  testing::Random random(2);
  std::vector<float> x(static_cast<size_t>(c.rows * c.k));
  for (float& v : x) v = random.Normal();
  std::vector<float> out(static_cast<size_t>(c.rows * c.n));
  Activations a;
  matmul.Prepare(x.data(), c.rows, c.k, leaves, c.act, {}, &a);
  const MatMulTask task{&a, &*packed, out.data(), c.n};
  const double seconds = BestSeconds(clock, budget, [&] { matmul.Run({&task, 1}); });
  const double prepare = BestSeconds(clock, budget / 8, [&] { matmul.Prepare(x.data(), c.rows, c.k, leaves, c.act, {}, &a); });
  const double flops = 2.0 * static_cast<double>(c.rows) * static_cast<double>(c.n) * static_cast<double>(c.k);
  const auto bytes = static_cast<double>(packed->stream.size());
  const double read = ReadRate(packed->stream, pool, clock, budget / 8);
  std::printf("{\"isa\": \"%s\", \"format\": \"%s\", \"act\": \"%s\", \"rows\": %ld, \"n\": %ld, \"k\": %ld, "
              "\"us\": %.1f, \"prepare_us\": %.1f, \"gflops\": %.1f, \"weight_gb_s\": %.2f, \"read_gb_s\": %.2f}\n",
              std::string(NameOf(isa)).c_str(), std::string(NameOf(c.dtype)).c_str(), std::string(NameOf(c.act)).c_str(),
              static_cast<long>(c.rows), static_cast<long>(c.n), static_cast<long>(c.k), seconds * 1e6, prepare * 1e6,
              flops / seconds * 1e-9, bytes / seconds * 1e-9, read);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (name == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (name == "--isa") options.isa = argv[i + 1];
    if (name == "--format") options.format = argv[i + 1];
    if (name == "--rows") options.rows = std::atol(argv[i + 1]);
    if (name == "--shape") options.shape = argv[i + 1];
    if (name == "--clock" && std::strcmp(argv[i + 1], "cpu") == 0) options.clock = CLOCK_PROCESS_CPUTIME_ID;
  }
  ThreadPool pool(std::max(1, options.threads), SetFloatMode);
  constexpr DType kFormats[] = {DType::kBF16, DType::kF32, DType::kF16, DType::kF8E4M3, DType::kQ8_0, DType::kQ4_0,
                                DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{576, 576}, {1536, 576}, {49152, 576}, {4096, 4096}};
  constexpr int64_t kRows[] = {1, 4, 16, 64, 256};
  std::vector<std::pair<Case, Isa>> cases;
  for (DType dtype : kFormats) {
    for (auto [n, k] : kShapes) {
      if (k % InfoOf(dtype).block_elements != 0) continue;
      // The everyday formats on every shape; the others on one.
      const bool common = dtype == DType::kBF16 || dtype == DType::kQ4_1;
      const bool wanted = !options.shape.empty() || !options.format.empty() || common || n == 4096;
      const std::string shape = std::to_string(n) + "x" + std::to_string(k);
      if (!wanted || (!options.shape.empty() && options.shape != shape)) continue;
      if (!options.format.empty() && options.format != NameOf(dtype)) continue;
      for (int64_t rows : kRows) {
        if (options.rows != 0 && options.rows != rows) continue;
        if (rows * n > int64_t{64} * 49152) continue;
        const ActDType act = dtype == DType::kF32 || dtype == DType::kF16 ? ActDType::kF32 : ActDType::kBF16;
        for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
          if (isa > DetectIsa() || (!options.isa.empty() && options.isa != NameOf(isa))) continue;
          if (isa == Isa::kAvx2 && !common && options.isa.empty()) continue;
          cases.push_back({{dtype, n, k, rows, act}, isa});
        }
      }
    }
  }
  for (const auto& [c, isa] : cases) RunCase(c, isa, pool, options.clock, options.seconds / static_cast<double>(cases.size()) * 0.6);
  return 0;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }
