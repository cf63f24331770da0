// Ranks as threads of one process: messages are rendezvous by pointer, one copy from the sender's
// memory to the receiver's, and a table of who is where tells a slow rank from a stuck one.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "comm/transport.h"
#include "mesh/cluster.h"

namespace sixfold {

struct LocalWorldOptions {
  // How long a rank waits for one that makes no progress (Transport::Progress, or an operation
  // begun or ended) before the instance fails. A rank that may be idle for longer, such as a leader
  // without requests, calls Progress at least four times in this span.
  std::chrono::milliseconds timeout{30000};
  // Ranks wait by spinning for some microseconds only when ranks * threads_per_rank <= cores.
  int threads_per_rank = 1;
  int cores = 0;  // 0: those that this process may run on
  // With it, a message reaches its receiver only when the cluster's links would have carried it:
  // latency + size / bandwidth after its port is free. A rank has one outgoing port for its node and
  // one for other nodes, as Link says, and all its messages of a kind queue for it, whoever gets
  // them; what arrives at one rank from several does not queue. Time runs from the start of the
  // send, also while both ranks compute. Waiting for it is no reason for a time-out.
  std::optional<Cluster> emulated_links;
};

// What the ranks share. Made once, before their threads; outlives them all.
//   LocalWorld world(4, {.timeout = 10s});
//   thread r: Communicator tp(world.transport(r), cluster, {Axis::kTp, 0, {0, 1, 2, 3}}, …);
// Thread rule: transport(r) from any thread; the Transport itself as transport.h says.
class LocalWorld {
 public:
  explicit LocalWorld(int ranks, const LocalWorldOptions& options = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int world() const;
  Transport& transport(int rank);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold
