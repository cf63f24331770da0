// Rates of the matrix products, as one JSON object a line: GFLOP/s, GB/s of weights and the share
// of a plain read of as many bytes. Bounded: each case runs for a fixed share of --seconds.
//   matmul_bench [--threads N] [--seconds S] [--isa NAME] [--format NAME] [--rows M] [--shape NxK]
//                [--act auto|int8] [--clock wall|cpu]
// --clock cpu counts the process's CPU time instead, for one thread on a machine that others use.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

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
  bool int8 = false;
  clockid_t clock = CLOCK_MONOTONIC;
};

// One matrix, multiplied for every ISA and number of rows.
struct Case {
  DType dtype;
  int64_t n, k;
  std::vector<Isa> isas;
  std::vector<int64_t> rows;
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
    pool.ParallelFor(count, pool.GrainFor(count, 1), [&](int64_t begin, int64_t end, int) {
      Line sum[8] = {};
      for (int64_t i = begin * 8; i < end * 8; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] ^= lines[i + j];
      }
      for (const Line& line : sum) sink = sink ^ line[0] ^ line[1];
    });
  });
  return static_cast<double>(buffer.size()) / seconds * 1e-9;
}

void Measure(const PackedMatrix& w, DType dtype, ActDType act, int64_t rows, MatMul& matmul,
             double read_gb_s, clockid_t clock, double budget) {
  testing::Random random(2);
  std::vector<float> x(static_cast<size_t>(rows * w.k));
  for (float& v : x) v = random.Normal();
  std::vector<float> out(static_cast<size_t>(rows * w.n));
  Activations a;
  const double prepare = BestSeconds(
      clock, budget / 8, [&] { matmul.Prepare(x.data(), rows, w.k, w.leaves, act, {}, &a); });
  const MatMulTask task{&a, &w, out.data(), w.n};
  const double seconds = BestSeconds(clock, budget, [&] { matmul.Run({&task, 1}); });
  const double flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(w.n) * static_cast<double>(w.k);
  const auto bytes = static_cast<double>(w.stream.size());
  std::printf(
      "{\"isa\": \"%s\", \"format\": \"%s\", \"act\": \"%s\", \"rows\": %ld, \"n\": %ld, \"k\": "
      "%ld, "
      "\"us\": %.1f, \"prepare_us\": %.1f, \"gflops\": %.1f, \"weight_gb_s\": %.2f, \"read_gb_s\": "
      "%.2f}\n",
      std::string(NameOf(matmul.isa())).c_str(), std::string(NameOf(dtype)).c_str(),
      std::string(NameOf(act)).c_str(), static_cast<long>(rows), static_cast<long>(w.n),
      static_cast<long>(w.k), seconds * 1e6, prepare * 1e6, flops / seconds * 1e-9,
      bytes / seconds * 1e-9, read_gb_s);
  std::fflush(stdout);
}

void RunCase(const Case& c, const Options& options, ThreadPool& pool, double budget) {
  const testing::RandomMatrix m(c.dtype, c.n, c.k, 1);
  const bool wide = c.dtype == DType::kF32 || c.dtype == DType::kF16;
  const ActDType act = options.int8 ? ActDType::kInt8 : wide ? ActDType::kF32 : ActDType::kBF16;
  auto packed = PackMatrix(m.view, {.act = act, .leaves = Leaves::Whole(c.k)}, pool);
  if (!packed.ok()) {
    std::fprintf(stderr, "%s\n", packed.status().ToString().c_str());
    std::exit(1);
  }
  const double read = ReadRate(packed->stream, pool, options.clock, budget);
  for (Isa isa : c.isas) {
    MatMul matmul(isa, pool);
    for (int64_t rows : c.rows)
      Measure(*packed, c.dtype, act, rows, matmul, read, options.clock, budget);
  }
}

// What the options leave of: every day's formats on every shape, the others on one.
std::vector<Case> Cases(const Options& options) {
  constexpr DType kFormats[] = {DType::kBF16,   DType::kQ4_1, DType::kF32,  DType::kF16,
                                DType::kF8E4M3, DType::kQ8_0, DType::kQ4_0, DType::kQ5_0,
                                DType::kQ5_1,   DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                                DType::kMXFP4};
  constexpr std::pair<int64_t, int64_t> kShapes[] = {
      {576, 576}, {1536, 576}, {49152, 576}, {4096, 4096}};
  constexpr int64_t kRows[] = {1, 4, 16, 64, 256};
  const bool chosen = !options.shape.empty() || !options.format.empty();
  std::vector<Case> cases;
  for (DType dtype : kFormats) {
    const bool common = dtype == DType::kBF16 || dtype == DType::kQ4_1;
    if (!options.format.empty() && options.format != NameOf(dtype)) continue;
    for (auto [n, k] : kShapes) {
      if (k % InfoOf(dtype).block_elements != 0 || (!chosen && !common && n != 4096)) continue;
      if (!options.shape.empty() && options.shape != std::to_string(n) + "x" + std::to_string(k))
        continue;
      Case c{dtype, n, k, {}, {}};
      for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
        const bool wanted =
            options.isa.empty() ? common || isa != Isa::kAvx2 : options.isa == NameOf(isa);
        if (isa <= DetectIsa() && wanted) c.isas.push_back(isa);
      }
      for (int64_t rows : kRows) {
        const bool wanted =
            options.rows == 0 ? rows * n * k <= int64_t{1} << 32 : options.rows == rows;
        if (wanted) c.rows.push_back(rows);
      }
      cases.push_back(c);
    }
  }
  return cases;
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
    if (name == "--act") options.int8 = std::strcmp(argv[i + 1], "int8") == 0;
    if (name == "--clock" && std::strcmp(argv[i + 1], "cpu") == 0)
      options.clock = CLOCK_PROCESS_CPUTIME_ID;
  }
  ThreadPool pool(std::max(1, options.threads), SetFloatMode);
  const std::vector<Case> cases = Cases(options);
  size_t measurements = 0;
  for (const Case& c : cases) measurements += c.isas.size() * c.rows.size() + 1;
  // A half for making matrices and for the runs that every measurement needs at least.
  for (const Case& c : cases)
    RunCase(c, options, pool, options.seconds * 0.5 / static_cast<double>(measurements));
  return 0;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }
