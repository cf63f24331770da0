#include "base/thread_pool.h"

#include "base/check.h"

namespace sixfold {

namespace {

// About 20 us of spinning covers the gap between two operators of one step; longer gaps sleep.
constexpr int kSpins = 4000;

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::function<void()> on_start) {
  SF_CHECK_GE(threads, 1);
  if (on_start) on_start();
  for (int member = 1; member < threads; ++member) {
    workers_.emplace_back([this, member, on_start] {
      if (on_start) on_start();
      WorkerLoop(member);
    });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::WorkerLoop(int member) {
  uint32_t seen = 0;
  while (true) {
    uint32_t now = round_.load(std::memory_order_acquire);
    for (int spin = 0; now == seen && spin < kSpins; ++spin) {
      CpuRelax();
      now = round_.load(std::memory_order_acquire);
    }
    while (now == seen) {
      round_.wait(seen, std::memory_order_acquire);
      now = round_.load(std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load(std::memory_order_acquire)) return;
    (*body_)(member);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadPool::Run(const std::function<void(int)>& body) {
  if (workers_.empty()) {
    body(0);
    return;
  }
  body_ = &body;
  pending_.store(static_cast<int>(workers_.size()), std::memory_order_release);
  round_.fetch_add(1, std::memory_order_acq_rel);
  round_.notify_all();
  body(0);
  int left = pending_.load(std::memory_order_acquire);
  for (int spin = 0; left != 0 && spin < kSpins; ++spin) {
    CpuRelax();
    left = pending_.load(std::memory_order_acquire);
  }
  while (left != 0) {
    pending_.wait(left, std::memory_order_acquire);
    left = pending_.load(std::memory_order_acquire);
  }
  body_ = nullptr;
}

void ThreadPool::ParallelFor(int64_t count, const std::function<void(int64_t, int64_t, int)>& body) {
  const int members = size();
  Run([&](int member) {
    const int64_t begin = count * member / members;
    const int64_t end = count * (member + 1) / members;
    if (begin < end) body(begin, end, member);
  });
}

}  // namespace sixfold
