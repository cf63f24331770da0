// A fixed team of threads for the arithmetic of one rank.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace sixfold {

// Runs one function over a range of items on all threads of the team. The calling thread is member
// 0.
//
// A round is cut into pieces; each member first claims the pieces of its own contiguous range, so
// that on a quiet machine it meets the same memory in every round, then those of the members that
// are behind. Whoever is descheduled holds up at most the piece it is in: the caller waits for
// pieces that are claimed, never for a member that has not come. Which member computes a piece
// depends on timing, so a piece must be a whole of its own: its result is a function of its items
// alone.
//
// Thread rule: rounds are run by one thread at a time (the rank's step thread); a call returns when
// all pieces are done. Members wait by spinning for a moment, then sleep, so an idle engine uses no
// CPU and a shared processor goes to whoever has work.
class ThreadPool {
 public:
  // kNever: for teams that together have more threads than there are processors; a thread that
  // spins is in the way.
  enum class Spin : uint8_t { kBriefly, kNever };

  // threads >= 1. `on_start` runs once in each new thread and in the creating thread (FTZ/DAZ,
  // affinity).
  explicit ThreadPool(int threads, std::function<void()> on_start = {}, Spin spin = Spin::kBriefly);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(begin, end, member) for pieces of `grain` items that together are [0, count); the
  // last may be shorter. No two calls at once have the same member. `body` must not throw. At most
  // 2^31 pieces.
  template <typename Body>
  void ParallelFor(int64_t count, int64_t grain, const Body& body) {
    RunRound({.body = &body, .call = &Call<Body>, .count = count, .grain = grain}, Order::kNear);
  }

  // The same for items of unequal work, one a piece, the dearest first: they are claimed in order,
  // without own ranges, so that all members end together.
  template <typename Body>
  void ParallelInOrder(int64_t count, const Body& body) {
    RunRound({.body = &body, .call = &Call<Body>, .count = count, .grain = 1}, Order::kFirst);
  }

  // A grain that gives each member some pieces, so that others can take over from a late one, of at
  // least `least` items.
  int64_t GrainFor(int64_t count, int64_t least) const;

 private:
  enum class Order : uint8_t { kNear, kFirst };

  struct Round {
    const void* body = nullptr;
    void (*call)(const void* body, int64_t begin, int64_t end, int member) = nullptr;
    int64_t count = 0, grain = 1;
  };

  // The pieces of a member that nobody has claimed: the next in the lower half, the end in the
  // upper half. A claim adds one, which gives a piece or, past the end, nothing. The words alone
  // say what is left, and a round ends only when every piece that was claimed is done. So whoever
  // comes late, after any number of rounds, either finds nothing or has rightly claimed a piece of
  // the round that runs now; and only then does it look at round_.
  struct alignas(64) Range {
    std::atomic<uint64_t> word{0};
  };

  template <typename Body>
  static void Call(const void* body, int64_t begin, int64_t end, int member) {
    (*static_cast<const Body*>(body))(begin, end, member);
  }

  void RunRound(const Round& round, Order order);
  void Publish(int64_t pieces, Order order);
  void Work(int member);
  void AwaitPieces(uint32_t pieces);
  void AwaitRound(uint32_t seen);
  void WorkerLoop(int member);

  const int size_;
  const std::chrono::nanoseconds spin_;
  std::unique_ptr<Range[]> ranges_;  // [size]
  Round round_;          // written while no piece is claimed, read by who has claimed one
  uint32_t pieces_ = 0;  // likewise
  alignas(64) std::atomic<uint32_t> epoch_{0};  // futex word of members without work: rounds begun
  std::atomic<uint32_t> asleep_{0};             // members that sleep on epoch_, or are about to
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> done_{
      0};  // futex word of the caller: pieces of this round that are done
  std::atomic<bool> caller_asleep_{false};
  std::vector<std::thread> workers_;
};

}  // namespace sixfold
