// Runs one function on every rank of a LocalWorld, a thread each, and gives back how each ended.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "base/status.h"
#include "comm/local/local_world.h"

namespace sixfold {

inline std::vector<Status> RunRanks(LocalWorld& world,
                                    const std::function<Status(Transport&)>& body) {
  std::vector<Status> results(world.world());
  std::vector<std::thread> threads;
  for (int r = 0; r < world.world(); ++r)
    threads.emplace_back([&, r] { results[r] = body(world.transport(r)); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace sixfold
