// A fixed team of threads for the arithmetic of one rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace sixfold {

// Runs one function on every thread of the team at a time. The calling thread is member 0.
// Thread rule: Run is called by one thread at a time (the rank's step thread); it returns when all members are done.
// Members wait for work by spinning a little, then sleep on a futex, so an idle engine uses no CPU.
class ThreadPool {
 public:
  // threads >= 1. `on_start` runs once in each new thread and in the creating thread (FTZ/DAZ, affinity).
  explicit ThreadPool(int threads, std::function<void()> on_start = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(member) for member 0..size()-1. `body` must not throw.
  void Run(const std::function<void(int member)>& body);

  // Splits [0, count) into contiguous ranges, one a member (never at a place that depends on timing).
  void ParallelFor(int64_t count, const std::function<void(int64_t begin, int64_t end, int member)>& body);

 private:
  void WorkerLoop(int member);

  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;  // valid while a round runs
  std::atomic<uint32_t> round_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace sixfold
