// The part of MPI that the transport uses, without mpi.h. Internal to mpi/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace sixfold::mpi {

// As the library describes itself; may be called before Open.
std::string LibraryVersion();

// Each has a communicator of its own, so that no tag of one meets one of another.
enum class Lane : uint8_t { kCollective, kLate, kControl };
inline constexpr int kLanes = 3;
inline constexpr int kAny = -1;  // any peer, any tag

// A message that has arrived and that no receive has been posted for.
struct Arrival {
  int peer = 0;
  int tag = 0;
  int64_t bytes = 0;
};

// A receive that got a message of another size. got: -1 when it was larger.
struct WrongSize {
  int peer = 0;
  int64_t expected = 0;
  int64_t got = 0;
};

// MPI itself. Thread rule: calls to one Wires and its RequestSets are serialised by their owner.
class Wires {
 public:
  // Initialises MPI; collective. kInternal: it refuses.
  static Result<std::unique_ptr<Wires>> Open();
  ~Wires();
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  int rank() const;
  int world() const;
  int ranks_on_host() const;
  int ranks_on_cores() const;  // of the host, that may run on a core that this one may run on
  const std::string& ProcessOf(int rank) const;  // "host node-3, pid 4711"
  int tag_max() const;  // tags 0 to this

  // The earliest that has arrived. Lets MPI make progress on everything else, too.
  bool Probe(Lane lane, int peer, int tag, Arrival* arrival);
  // Of a short message that Probe has found.
  Status ReceiveNow(Lane lane, const Arrival& arrival, std::vector<std::byte>* data);

  Status Finalize();
  [[noreturn]] void Abort(int exit_code);

 private:
  friend class RequestSet;
  struct Impl;
  explicit Wires(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Sends and receives under way. `wires` outlives it. Buffers are the caller's until the set is
// done.
class RequestSet {
 public:
  explicit RequestSet(Wires& wires);
  ~RequestSet();
  RequestSet(const RequestSet&) = delete;
  RequestSet& operator=(const RequestSet&) = delete;

  // Messages of any size, in pieces that MPI can count.
  Status Send(Lane lane, int peer, int tag, std::span<const std::byte> data);
  Status Receive(Lane lane, int peer, int tag, std::span<std::byte> data);
  // Sees off what is done. kInternal: MPI's own words.
  Status Poll();
  bool done() const;
  void AppendPeers(std::vector<int>* peers) const;  // of what is not done
  bool Receiving(int peer) const;                   // something from it is not done
  const std::vector<WrongSize>& wrong_sizes() const;
  // After a failure: takes back receives and forgets sends, whose peers may be gone.
  void GiveUp();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sixfold::mpi
