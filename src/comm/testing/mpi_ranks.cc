// One rank of a test under mpirun: what it does is its first argument.
//   mpi_ranks conformance [seeds]        exit 0 when everything compared equal
//   mpi_ranks latency                    rank 0 prints times, one JSON object a line
//   mpi_ranks large                      a message of more than 2 GiB from rank 0 to rank 1
//   mpi_ranks idle                       all wait 10 s for rank 0; each prints the processor time
//   it
//                                        took
//   mpi_ranks (skip|stop|kill|fail|slow) [rank]
//                                        rank 1 goes astray, with a time-out of 2 s; the others
//                                        print the failure and end by MpiWorld::Kill(7)
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <string_view>
#include <thread>

#include "comm/communicator.h"
#include "comm/mpi/mpi_world.h"
#include "comm/testing/conformance.h"

namespace sixfold {
namespace {

using namespace std::chrono_literals;

struct Rank {
  explicit Rank(Transport& t) : transport(t), members(t.world()) {
    std::iota(members.begin(), members.end(), 0);
  }

  Transport& transport;
  std::vector<int> members;
  Cluster cluster = Cluster::OneNode(transport.world());
  Ledger ledger;
  ControlTraffic control;
};

Status Conformance(Transport& transport, int seeds) {
  for (int seed = 1; seed <= seeds; ++seed) {
    SF_RETURN_IF_ERROR(RunConformance(
        transport, {.seed = static_cast<uint64_t>(seed * 1000 + transport.world())}));
  }
  return OkStatus();
}

Status Latency(Transport& transport) {
  Rank rank(transport);
  Communicator comm(transport, rank.cluster, {Axis::kTp, 0, rank.members}, rank.ledger,
                    rank.control);
  const TreeCut cut = CutTree(transport.world(), transport.world());
  for (const int64_t bytes : {0, 2304, 65536, 2359296}) {
    std::vector<float> x(static_cast<size_t>(bytes) / 4, 0.0F);
    std::vector<double> us;
    for (int batch = 0; batch < 15; ++batch) {
      SF_RETURN_IF_ERROR(comm.Barrier());
      const int calls = bytes > 100000 ? 10 : 200;
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < calls; ++i) {
        SF_RETURN_IF_ERROR(
            bytes == 0 ? comm.Barrier()
                       : comm.AllReduce(ReduceType::kF32, cut, bytes / 4, x.data(), x.data()));
      }
      us.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
              .count() /
          calls);
    }
    std::sort(us.begin(), us.end());
    if (comm.index() == 0) {
      std::printf("{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"us\": %.2f}\n",
                  bytes == 0 ? "barrier" : "all_reduce", comm.size(), static_cast<long long>(bytes),
                  us[us.size() / 2]);
    }
  }
  return OkStatus();
}

// More than MPI's counts can say; the start, the seams and the end are compared.
Status Large(Transport& transport) {
  constexpr size_t kBytes = (size_t{2} << 30) + 12345;
  const Operation operation = {CommOp::kSend, 1};
  if (transport.rank() > 1) return OkStatus();
  std::vector<std::byte> data(kBytes);
  const auto value = [](size_t i) { return static_cast<std::byte>(i * 2654435761 >> 13); };
  const size_t probes[] = {0, (1 << 30) - 1, 1 << 30, (size_t{2} << 30) + 1, kBytes - 1};
  if (transport.rank() == 0) {
    for (const size_t i : probes) data[i] = value(i);
    SF_ASSIGN_OR_RETURN(const SendTicket ticket, transport.StartSend(operation, {1, data}));
    return transport.FinishSend(ticket);
  }
  const RecvPart part = {0, data};
  SF_RETURN_IF_ERROR(transport.Exchange(operation, {}, std::span(&part, 1)));
  for (const size_t i : probes) {
    if (data[i] != value(i)) return Internal("a large message differs");
  }
  return OkStatus();
}

Status Idle(Transport& transport) {
  Rank rank(transport);
  Communicator world(transport, rank.cluster, {Axis::kDp, 0, rank.members}, rank.ledger,
                     rank.control);
  SF_RETURN_IF_ERROR(world.Barrier());
  const std::clock_t begin = std::clock();
  for (int i = 0; transport.rank() == 0 && i < 10; ++i) {
    std::this_thread::sleep_for(1s);
    transport.Progress({});
  }
  std::vector<std::byte> plan(10);
  SF_RETURN_IF_ERROR(world.Broadcast(0, &plan));
  std::printf("rank %d: %.3f s of processor time in 10 s\n", transport.rank(),
              static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  return OkStatus();
}

// What one rank does in layer 4 of step 1.
Status GoAstray(std::string_view what, Transport& transport, bool* skips) {
  if (what == "stop") raise(SIGSTOP);
  if (what == "kill") raise(SIGKILL);
  if (what == "skip") *skips = true;
  if (what == "fail") {  // seen by another thread, while this one waits for what nobody sends
    std::thread other([&] {
      std::this_thread::sleep_for(300ms);
      transport.Abort(OutOfMemory("rank 1: no memory for pages"));
    });
    std::byte data{};
    const RecvPart part = {0, std::span(&data, 1)};
    const Status status = transport.Exchange({CommOp::kSend, 99}, {}, std::span(&part, 1));
    other.join();
    return status;
  }
  if (what == "slow") {  // three time-outs long, but alive
    for (int i = 0; i < 60; ++i) {
      std::this_thread::sleep_for(100ms);
      transport.Progress({.step = 1, .layer = 4});
    }
  }
  return OkStatus();
}

Status Steps(std::string_view what, int astray, Transport& transport) {
  Rank rank(transport);
  Communicator world(transport, rank.cluster, {Axis::kDp, 0, rank.members}, rank.ledger,
                     rank.control);
  Communicator tp(transport, rank.cluster, {Axis::kTp, 3, rank.members}, rank.ledger, rank.control);
  const TreeCut cut = CutTree(transport.world(), transport.world());
  std::vector<float> x(576, 1.0F);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::byte> plan(100);
    SF_RETURN_IF_ERROR(world.Broadcast(0, &plan));
    for (int layer = 0; layer < 12; ++layer) {
      transport.Progress({.step = step, .layer = layer});
      bool skips = false;
      if (transport.rank() == astray && step == 1 && layer == 4)
        SF_RETURN_IF_ERROR(GoAstray(what, transport, &skips));
      if (skips) continue;
      SF_RETURN_IF_ERROR(tp.AllReduce(ReduceType::kF32, cut, 576, x.data(), x.data()));
    }
    transport.Progress({.step = step, .layer = -1});
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const bool faults =
      what != "conformance" && what != "latency" && what != "large" && what != "idle";
  auto world = MpiWorld::Start({.timeout = faults ? 2s : 60s, .leader_grace = 500ms});
  if (!world.ok()) {
    std::fprintf(stderr, "%s\n", world.status().message().c_str());
    return 1;
  }
  MpiWorld& mpi = **world;
  Status status;
  if (what == "conformance") {
    status = Conformance(mpi.transport(), argc > 2 ? std::atoi(argv[2]) : 3);
  } else if (what == "latency") {
    status = Latency(mpi.transport());
  } else if (what == "large") {
    status = Large(mpi.transport());
  } else if (what == "idle") {
    status = Idle(mpi.transport());
  } else {
    status = Steps(what, argc > 2 ? std::atoi(argv[2]) : 1, mpi.transport());
  }
  if (!status.ok()) {
    if (mpi.transport().Failed().ok()) mpi.transport().Abort(status);
    std::fprintf(stderr, "rank %d ends: %s\n", mpi.rank(), status.ToString().c_str());
    mpi.Kill(7);
  }
  if (mpi.rank() == 0) std::printf("%d ranks passed\n", mpi.world());
  return mpi.Finalize().ok() ? 0 : 1;
}

}  // namespace
}  // namespace sixfold

int main(int argc, char** argv) { return sixfold::Main(argc, argv); }
