#include "base/thread_pool.h"

#include <algorithm>

#include "base/check.h"
#include "base/futex.h"

namespace sixfold {

namespace {

// Covers the gap between two operators of one step; longer gaps sleep.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPollsPerClock = 16;
// Pieces a member: enough that a late one leaves something to take over, few enough that claiming
// costs nothing.
constexpr int64_t kPiecesPerMember = 8;

constexpr uint64_t RangeWord(int64_t begin, int64_t end) {
  return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin);
}
constexpr uint32_t NextOf(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr uint32_t EndOf(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

// Polls until `ready`, at most for `span`. Returns whether it came.
template <typename Ready>
bool SpinUntil(std::chrono::nanoseconds span, const Ready& ready) {
  if (ready()) return true;
  if (span.count() == 0) return false;
  const auto end = std::chrono::steady_clock::now() + span;
  do {
    for (int i = 0; i < kPollsPerClock; ++i) {
      CpuRelax();
      if (ready()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::function<void()> on_start, Spin spin)
    : size_(threads), spin_(spin == Spin::kBriefly ? kSpin : std::chrono::nanoseconds(0)) {
  SF_CHECK_GE(threads, 1);
  ranges_ = std::make_unique<Range[]>(static_cast<size_t>(threads));
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
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(epoch_);
  for (auto& worker : workers_) worker.join();
}

int64_t ThreadPool::GrainFor(int64_t count, int64_t least) const {
  const int64_t wanted = kPiecesPerMember * size_;
  return std::max(least, (count + wanted - 1) / wanted);
}

void ThreadPool::RunRound(const Round& round, Order order) {
  SF_CHECK_GE(round.grain, 1);
  if (round.count <= 0) return;
  const int64_t pieces = (round.count + round.grain - 1) / round.grain;
  if (size_ == 1 || pieces == 1) {
    round.call(round.body, 0, round.count, 0);
    return;
  }
  SF_CHECK_LT(pieces, int64_t{1} << 31);
  round_ = round;
  Publish(pieces, order);
  Work(0);
  AwaitPieces(static_cast<uint32_t>(pieces));
}

// From the first store on, members that are awake may claim.
void ThreadPool::Publish(int64_t pieces, Order order) {
  pieces_ = static_cast<uint32_t>(pieces);
  done_.store(0, std::memory_order_relaxed);
  const int64_t owners = order == Order::kNear ? size_ : 1;
  for (int64_t owner = 0; owner < owners; ++owner) {
    const int64_t begin = pieces * owner / owners, end = pieces * (owner + 1) / owners;
    if (begin < end) ranges_[owner].word.store(RangeWord(begin, end), std::memory_order_release);
  }
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) > 0) FutexWakeAll(epoch_);
}

// Until no piece is left: own ones first, then those of the members that follow.
void ThreadPool::Work(int member) {
  uint32_t finished = 0, pieces = 0;
  for (int i = 0; i < size_; ++i) {
    std::atomic<uint64_t>& range = ranges_[(member + i) % size_].word;
    // The load keeps the lines of exhausted ranges shared.
    for (uint64_t word = range.load(std::memory_order_relaxed); NextOf(word) < EndOf(word);) {
      word = range.fetch_add(1, std::memory_order_acq_rel);
      if (NextOf(word) >= EndOf(word)) break;
      pieces = pieces_;
      const int64_t begin = NextOf(word) * round_.grain;
      round_.call(round_.body, begin, std::min(begin + round_.grain, round_.count), member);
      ++finished;
    }
  }
  if (finished == 0) return;
  const uint32_t done = done_.fetch_add(finished, std::memory_order_seq_cst) + finished;
  // Now the next round may begin: round_ and pieces_ are the caller's again.
  if (done == pieces && caller_asleep_.load(std::memory_order_seq_cst)) FutexWakeOne(done_);
}

void ThreadPool::AwaitPieces(uint32_t pieces) {
  const auto all_done = [&] { return done_.load(std::memory_order_acquire) == pieces; };
  if (SpinUntil(spin_, all_done)) return;
  caller_asleep_.store(true, std::memory_order_seq_cst);
  for (uint32_t done = done_.load(std::memory_order_seq_cst); done != pieces;
       done = done_.load(std::memory_order_seq_cst)) {
    FutexWait(done_, done);
  }
  caller_asleep_.store(false, std::memory_order_relaxed);
}

// Until another round than `seen` has begun.
void ThreadPool::AwaitRound(uint32_t seen) {
  const auto begun = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  if (SpinUntil(spin_, begun)) return;
  asleep_.fetch_add(1, std::memory_order_seq_cst);
  while (epoch_.load(std::memory_order_seq_cst) == seen) FutexWait(epoch_, seen);
  asleep_.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadPool::WorkerLoop(int member) {
  uint32_t seen = 0;
  while (true) {
    AwaitRound(seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    Work(member);
  }
}

}  // namespace sixfold
