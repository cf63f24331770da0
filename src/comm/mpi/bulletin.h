// What processes tell each other about themselves: where they are, how far they have come, for whom
// they wait; and last words. Internal to mpi/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/mpi/wires.h"
#include "comm/watch.h"

namespace sixfold::mpi {

// A waiting rank reports again and again, so that one that has not for half a time-out is not taken
// to be waiting any more, whatever it said last: it may have been stopped in its wait.
// Thread rule: as Wires. Small messages that are lost when a peer does not read them: each peer has
// one outgoing slot, and a report for which it is not free is left out, for the next will do.
class Bulletin : public RankView {
 public:
  Bulletin(Wires& wires, std::chrono::milliseconds timeout);
  ~Bulletin() override;

  // About this rank.
  const Place& place() const { return own_.place; }
  void SetPlace(const Place& place) { own_.place = place; }
  void Begin(const Operation& operation);
  void CountProgress() { ++own_.progress; }
  void SetWaitsFor(int rank) { own_.waits_for = rank; }  // -1: for nobody

  // Whether others think that this rank waits for somebody else than it does.
  bool outdated() const { return told_waits_for_ != own_.waits_for; }
  void Report();  // to all
  // Takes in what has arrived; the message of a failure, if there was one.
  std::optional<std::string> Read();
  // To all; returns when they have it, or after `limit`.
  void LastWords(const std::string& message, std::chrono::milliseconds limit);

  uint64_t ProgressOf(int rank) const override;
  int WaitsFor(int rank) const override;
  RankSight ReportOf(int rank) const override;
  std::string ProcessOf(int rank) const override { return wires_.ProcessOf(rank); }

 private:
  struct Known {
    uint64_t progress = 0;
    Place place;
    int waits_for = -1;
    SteadyClock::time_point heard{};
    std::vector<PackedRecord> history;  // oldest first
  };
  struct Outgoing {
    std::unique_ptr<RequestSet> requests;
    std::vector<std::byte> data;
  };

  const Known& Of(int rank) const { return rank == wires_.rank() ? own_ : others_[rank]; }
  std::vector<std::byte> Encode() const;
  static bool Decode(const std::vector<std::byte>& data, Known* known);

  Wires& wires_;
  const std::chrono::milliseconds timeout_;
  Known own_;
  uint64_t operations_ = 0;  // own_.history is a ring: the next goes to operations_ % kHistory
  int told_waits_for_ = -1;
  std::vector<Known> others_;       // [world]
  std::vector<Outgoing> outgoing_;  // [world]
  std::vector<std::byte> incoming_;
};

}  // namespace sixfold::mpi
