// The memory that ranks of one process share: mail slots, bells to wake sleepers, the table of who
// is where, and the first failure. Internal to local/.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/futex.h"
#include "base/status.h"
#include "comm/local/local_world.h"
#include "comm/watch.h"

namespace sixfold::local {

inline constexpr size_t kCacheLine = 64;

// One send. The sender owns it and its data until the state is kDone or it has withdrawn it; the
// receiver owns `next` from the moment it takes it. A receiver claims a message before it copies,
// so that a sender that leaves after a failure never frees memory that is being read.
struct alignas(kCacheLine) Message {
  enum State : uint32_t { kPosted, kClaimed, kDone, kWithdrawn };

  const std::byte* data = nullptr;
  size_t size = 0;
  Operation operation;
  Message* next = nullptr;
  bool eager = false;  // nobody waits until it is done
  SteadyClock::time_point arrival;  // with emulated links: not before
  std::atomic<uint32_t> state{kDone};
};

// A short control message that carries its data, so that its sender goes on at once: a leader does
// not wait with the next plan until the last stage has taken this one. A few for each pair of
// ranks, which bounds how far it can run ahead. Payload is quicker without the second copy: an
// all-reduce of 2.3 KB takes 0.8 us so, 1.25 us with it.
inline constexpr size_t kEagerBytes = 4096;
inline constexpr int kEagerSlots = 4;
struct EagerMessage {
  Message message;
  std::array<std::byte, kEagerBytes> data;
};
using EagerSlots = std::array<EagerMessage, kEagerSlots>;

// Messages from one rank to another that the receiver has not taken yet, the newest first: one
// producer pushes, one consumer takes all, so there is no bound and no node that both own.
struct alignas(kCacheLine) Channel {
  std::atomic<Message*> newest{nullptr};
};

// A rank that sleeps says how many events it needs before waking is of use; whoever makes the last
// of them happen wakes it. Counts may run low (an early wake-up is harmless), never high.
struct alignas(kCacheLine) Bell {
  std::atomic<int> messages_awaited{0};  // arrivals; > 0 only while asleep
  std::atomic<int> sends_awaited{0};     // own sends taken by their receivers; likewise
  std::atomic<uint32_t> rings{0};        // futex word
};

// What a rank shows of itself. Written by its step thread alone; read by any.
struct alignas(kCacheLine) RankState {
  std::atomic<uint64_t> progress{0};
  std::atomic<int64_t> step{0};
  std::atomic<int> layer{-1};
  std::atomic<int> waits_for{-1};
  std::atomic<uint64_t> operations{0};  // begun; the newest kHistory are in `history`
  // PackedRecords. A reader that races with the writer may see parts of two records: they serve
  // messages only.
  std::array<std::atomic<uint64_t>, size_t{3} * kHistory> history{};
};

class Shared {
 public:
  Shared(int ranks, const LocalWorldOptions& options);

  int ranks() const { return ranks_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  bool may_spin() const { return may_spin_; }
  // Of LocalWorldOptions::emulated_links; null without.
  const Cluster* emulated() const { return emulated_ ? &*emulated_ : nullptr; }
  Channel& channel(int from, int to) { return channels_[static_cast<size_t>(from) * ranks_ + to]; }
  Bell& bell(int rank) { return bells_[rank]; }
  RankState& state(int rank) { return states_[rank]; }
  const RankState& state(int rank) const { return states_[rank]; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Keeps the first failure and wakes everybody.
  void Fail(int rank, const Status& why);
  // The failure as `rank` sees it: its own, or kUnavailable with another's message. OK without.
  Status FailureFor(int rank) const;

 private:
  const int ranks_;
  const std::chrono::milliseconds timeout_;
  const bool may_spin_;
  const std::optional<Cluster> emulated_;
  std::unique_ptr<Channel[]> channels_;  // [from][to]
  std::unique_ptr<Bell[]> bells_;        // [ranks]
  std::unique_ptr<RankState[]> states_;  // [ranks]
  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  Status failure_;
  int failed_rank_ = -1;
};

// Called after an event: wakes the sleeper when `awaited` says that this was the last it needs.
inline void Notify(Bell& bell, std::atomic<int>& awaited) {
  if (awaited.load(std::memory_order_seq_cst) <= 0) return;
  if (awaited.fetch_sub(1, std::memory_order_seq_cst) > 1) return;
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeOne(bell.rings);
}

}  // namespace sixfold::local
