// When a wait has lasted too long, and whose fault that is. Both transports use it; they differ in
// how a rank learns of the others.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/transport.h"

namespace sixfold {

using SteadyClock = std::chrono::steady_clock;

// Operations that a rank remembers to tell where two ranks parted: two steps of a model with 30
// layers, and a report of them fits an eager message of MPI.
inline constexpr int kHistory = 128;

struct OperationRecord {
  Operation operation;
  Place place;
};

// Sequence, step, and the rest: what is kept and sent.
using PackedRecord = std::array<uint64_t, 3>;
PackedRecord Pack(const OperationRecord& record);
OperationRecord Unpack(const PackedRecord& packed);

// What is known of one rank, for a message.
struct RankSight {
  Place place;
  int waits_for = -1;                    // global rank; -1: not waiting
  std::vector<OperationRecord> history;  // oldest first; the last may be under way
};

// How a waiting rank sees the others.
class RankView {
 public:
  virtual ~RankView() = default;
  // Changes with every operation begun or ended and every Progress() of that rank.
  virtual uint64_t ProgressOf(int rank) const = 0;
  virtual int WaitsFor(int rank) const = 0;
  virtual RankSight ReportOf(int rank) const = 0;
  // "host node-3, pid 4711": where to look for the rank. Empty: not known.
  virtual std::string ProcessOf(int rank) const = 0;
};

// Of this process, as ProcessOf says it.
std::string ThisProcess();

// "all_reduce 17 of tp group 3 (layer 4, step 12)".
std::string Describe(const Operation& operation);
std::string Describe(const Place& place);
std::string Describe(const OperationRecord& record);

// "; first difference: …": the earliest collective of one group and number that two ranks did not
// enter alike, also in the same layer and step; empty if none is known.
std::string FirstDifference(int a, int b, const RankView& view);

// A message that is not the one awaited. kInternal.
Status Divergence(int rank, const OperationRecord& here, int peer, const OperationRecord& there,
                  const RankView& view);
Status SizeDivergence(int rank, const OperationRecord& here, int64_t bytes_here, int peer,
                      int64_t bytes_there);

// One rank's deadline. A peer that waits itself is as alive as the rank at the end of its chain of
// waits, so that a slow first stage does not make the second blame the third.
class Watch {
 public:
  Watch(int rank, int world, std::chrono::milliseconds timeout);

  std::chrono::milliseconds timeout() const { return timeout_; }
  void BeginWait(SteadyClock::time_point now) { begin_ = now; }

  struct Stall {
    int peer = -1;
    SteadyClock::duration span{};  // since somebody on the peer's chain made progress
  };
  // Of the peers still awaited, the one that stands still the longest. `peers` is not empty.
  Stall WorstOf(std::span<const int> peers, SteadyClock::time_point now, const RankView& view);

  // kDeadline, in words: who waited for whom in what, and the cause as far as the view shows it.
  Status Expired(const OperationRecord& here, int peer, SteadyClock::time_point now,
                 const RankView& view) const;

 private:
  struct Seen {
    uint64_t progress = 0;
    SteadyClock::time_point since{};
  };

  const int rank_;
  const std::chrono::milliseconds timeout_;
  SteadyClock::time_point begin_{};
  std::vector<Seen> seen_;  // [world]
};

}  // namespace sixfold
