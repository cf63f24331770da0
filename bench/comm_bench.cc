// Times of the collectives among threads of one process, one JSON object a line: medians over batches of calls, wall
// clock, as the slowest rank sees them.
//   comm_bench [--ranks N] [--seconds S]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"
#include "comm/local/local_world.h"

namespace sixfold {
namespace {

using Clock = std::chrono::steady_clock;

struct Case {
  const char* name;
  int64_t bytes;
  std::function<Status(Communicator&, float* nodes, float* out)> call;
};

std::vector<Case> Cases(int ranks) {
  std::vector<Case> cases = {{"barrier", 0, [](Communicator& c, float*, float*) { return c.Barrier(); }}};
  const TreeCut cut = CutTree(std::max(8, ranks), ranks);
  for (const int64_t bytes : {2304, 16384, 65536, 262144, 2359296}) {
    cases.push_back({"all_reduce", bytes, [cut, bytes](Communicator& c, float* nodes, float* out) {
                       return c.AllReduce(ReduceType::kF32, cut, bytes / 4, nodes, out);
                     }});
  }
  for (const int64_t bytes : {2304, 2359296}) {
    cases.push_back({"all_gather", bytes, [bytes, ranks](Communicator& c, float*, float* out) {
                       return c.AllGather(EqualBounds(bytes, ranks), reinterpret_cast<std::byte*>(out));
                     }});
  }
  return cases;
}

// Microseconds a call, median of batches; all ranks run the same number of calls.
double Measure(LocalWorld& world, const Case& test, double seconds) {
  const int ranks = world.world();
  constexpr int kBatches = 21;
  std::vector<double> us(kBatches);
  int calls = 0;
  const auto body = [&](int rank) {
    std::vector<int> members(ranks);
    for (int r = 0; r < ranks; ++r) members[r] = r;
    Ledger ledger;
    ControlTraffic control;
    Communicator comm(world.transport(rank), Cluster::OneNode(ranks), {Axis::kTp, 0, members}, ledger, control);
    const size_t nodes = CutTree(std::max(8, ranks), ranks).nodes[rank].size();
    std::vector<float> in(std::max<size_t>(1, nodes * static_cast<size_t>(test.bytes) / 4), 1.0F);
    std::vector<float> out(static_cast<size_t>(test.bytes) / 4 + 1);
    const auto run = [&](int n) {
      const auto begin = Clock::now();
      for (int i = 0; i < n; ++i) {
        const Status status = test.call(comm, in.data(), out.data());
        if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
        SF_CHECK(status.ok());
      }
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    const double probe = run(20) / 20;
    if (rank == 0) calls = std::clamp(static_cast<int>(seconds / kBatches / probe), 5, 20000);
    SF_CHECK(comm.Barrier().ok());
    for (int b = 0; b < kBatches; ++b) {
      SF_CHECK(comm.Barrier().ok());
      const double spent = run(calls);
      if (rank == 0) us[b] = spent / calls * 1e6;
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
  std::sort(us.begin(), us.end());
  return us[kBatches / 2];
}

int Main(int argc, char** argv) {
  int ranks = 2;
  double seconds = 0.3;  // a case
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--ranks") == 0) ranks = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
  }
  for (const Case& test : Cases(ranks)) {
    LocalWorld world(ranks);
    const double us = Measure(world, test, seconds);
    std::printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"us\": %.2f, \"gb_s\": %.2f}\n", test.name, ranks,
                static_cast<long long>(test.bytes), us, static_cast<double>(test.bytes) / us * 1e-3);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }
