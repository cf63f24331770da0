#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace sixfold {
namespace {

// Opens once. A test whose subject fails to open it hangs, which its caller bounds; no time is
// measured.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

// Counts the visits of each item of a round.
class Visits {
 public:
  explicit Visits(int64_t count) : visits_(static_cast<size_t>(count)) {}
  void Add(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      visits_[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
  }
  bool AllOnce() const {
    return std::all_of(visits_.begin(), visits_.end(),
                       [](const std::atomic<int>& v) { return v.load() == 1; });
  }

 private:
  std::vector<std::atomic<int>> visits_;
};

TEST(ThreadPool, EveryItemIsVisitedOnceWhateverTheGrain) {
  for (const auto spin : {ThreadPool::Spin::kBriefly, ThreadPool::Spin::kNever}) {
    ThreadPool pool(4, {}, spin);
    for (const int64_t count : {0, 1, 2, 3, 5, 37, 64}) {
      for (const int64_t grain : {1, 2, 7, 64}) {
        Visits visits(count);
        pool.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int member) {
          EXPECT_EQ(begin % grain, 0);
          EXPECT_TRUE(member >= 0 && member < 4);
          visits.Add(begin, end);
        });
        EXPECT_TRUE(visits.AllOnce()) << count << " items by " << grain;
      }
      Visits visits(count);
      pool.ParallelInOrder(count, [&](int64_t begin, int64_t end, int) { visits.Add(begin, end); });
      EXPECT_TRUE(visits.AllOnce()) << count << " items in order";
    }
  }
}

// Pieces lie at multiples of the grain, so that where an item's piece begins does not depend on who
// computes it.
TEST(ThreadPool, PiecesDoNotDependOnTheTeam) {
  const auto pieces_of = [](int threads) {
    ThreadPool pool(threads);
    std::mutex mutex;
    std::vector<std::pair<int64_t, int64_t>> pieces;
    pool.ParallelFor(23, 4, [&](int64_t begin, int64_t end, int) {
      const std::lock_guard lock(mutex);
      pieces.emplace_back(begin, end);
    });
    std::sort(pieces.begin(), pieces.end());
    return pieces;
  };
  const std::vector<std::pair<int64_t, int64_t>> want = {{0, 4},   {4, 8},   {8, 12},
                                                         {12, 16}, {16, 20}, {20, 23}};
  EXPECT_EQ(pieces_of(2), want);
  EXPECT_EQ(pieces_of(3), want);
  EXPECT_EQ(pieces_of(9), want);
}

// A member that got no processor for so long that it has missed many rounds.
TEST(ThreadPool, AMemberThatHasNotComeHoldsUpNoRound) {
  Gate gate;
  const std::thread::id creator = std::this_thread::get_id();
  ThreadPool pool(3, [&] {
    if (std::this_thread::get_id() != creator) gate.Wait();
  });
  for (int round = 0; round < 1000; ++round) {
    Visits visits(round % 40);
    pool.ParallelFor(round % 40, 1 + round % 3, [&](int64_t begin, int64_t end, int member) {
      EXPECT_EQ(member, 0);
      visits.Add(begin, end);
    });
    ASSERT_TRUE(visits.AllOnce());
  }
  gate.Open();
  // Those that come now find a round of long ago, none, or the one that runs: never a piece that
  // was done before.
  for (int round = 0; round < 1000; ++round) {
    Visits visits(17);
    pool.ParallelFor(17, 1, [&](int64_t begin, int64_t end, int) { visits.Add(begin, end); });
    ASSERT_TRUE(visits.AllOnce());
  }
}

// Whichever member stops in whichever piece: all other pieces are done before it goes on.
TEST(ThreadPool, AMemberThatStopsInAPieceLeavesTheOthersToTheRest) {
  constexpr int kPieces = 24;
  for (int stopped_piece = 0; stopped_piece < kPieces; ++stopped_piece) {
    for (const bool in_order : {false, true}) {
      ThreadPool pool(3);
      Gate others_done;
      std::atomic<int> left{kPieces - 1};
      Visits visits(kPieces);
      const auto body = [&](int64_t begin, int64_t end, int) {
        if (begin == stopped_piece) others_done.Wait();
        visits.Add(begin, end);
        if (begin != stopped_piece && left.fetch_sub(1) == 1) others_done.Open();
      };
      if (in_order)
        pool.ParallelInOrder(kPieces, body);
      else
        pool.ParallelFor(kPieces, 1, body);
      EXPECT_TRUE(visits.AllOnce());
    }
  }
}

// All members claim from one word at once.
TEST(ThreadPool, NoPieceIsClaimedTwice) {
  ThreadPool pool(4);
  for (int round = 0; round < 100; ++round) {
    Visits visits(20000);
    pool.ParallelInOrder(20000, [&](int64_t begin, int64_t end, int) { visits.Add(begin, end); });
    ASSERT_TRUE(visits.AllOnce());
  }
}

// On a quiet machine each member meets the same memory in every round.
TEST(ThreadPool, MembersThatAllComeKeepToTheirOwnRanges) {
  constexpr int kMembers = 3, kPieces = 12;
  ThreadPool pool(kMembers);
  std::vector<int> member_of(kPieces, -1);
  // Nobody goes on until all have begun their first piece.
  std::atomic<int> begun{0};
  Gate all_begun;
  pool.ParallelFor(kPieces, 1, [&](int64_t begin, int64_t, int member) {
    member_of[static_cast<size_t>(begin)] = member;
    if (begin % (kPieces / kMembers) != 0) return;
    if (begun.fetch_add(1) + 1 == kMembers) all_begun.Open();
    all_begun.Wait();
  });
  for (int owner = 0; owner < kMembers; ++owner) EXPECT_EQ(member_of[owner * 4], owner);
}

// Bodies live on the caller's stack and differ in everything; members come and go as the scheduler
// likes.
TEST(ThreadPool, RoundsInQuickSuccessionDoNotMix) {
  for (const auto spin : {ThreadPool::Spin::kBriefly, ThreadPool::Spin::kNever}) {
    ThreadPool pool(4, {}, spin);
    for (int round = 0; round < 3000; ++round) {
      const int64_t count = 1 + round % 29;
      std::vector<int> out(static_cast<size_t>(count), -1);
      const auto body = [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) out[static_cast<size_t>(i)] = round;
      };
      if (round % 3 == 0)
        pool.ParallelInOrder(count, body);
      else
        pool.ParallelFor(count, 1 + round % 4, body);
      for (const int value : out) ASSERT_EQ(value, round);
      if (round % 500 == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // they fall asleep
    }
  }
}

TEST(ThreadPool, GrainLeavesSomethingToTakeOver) {
  ThreadPool pool(3);
  EXPECT_EQ(pool.GrainFor(2400, 1), 100);
  EXPECT_EQ(pool.GrainFor(2401, 1), 101);
  EXPECT_EQ(pool.GrainFor(2400, 500), 500);
  EXPECT_EQ(pool.GrainFor(2, 1), 1);
}

}  // namespace
}  // namespace sixfold
