// One rank's end of the wires to all others. Everything that moves between ranks goes through here,
// and is counted here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/ledger.h"
#include "mesh/axes.h"

namespace sixfold {

// What a wait is for, for messages and for matching: a message that meets a receive of another
// group, op or sequence number is a divergence, reported by name.
struct Operation {
  CommOp op = CommOp::kBarrier;
  int group = 0;  // number of the communicator, equal on all its members
  // Of the operation within its group; a kSend counts within its sender, receiver and group.
  uint64_t sequence = 0;
  Axis axis = Axis::kTp;  // of the group, for messages
};

struct SendPart {
  int peer = 0;  // global rank
  std::span<const std::byte> data;
};
struct RecvPart {
  int peer = 0;
  std::span<std::byte> data;
};

// Where the rank is in its program, for messages. layer -1: not inside a layer.
struct Place {
  int64_t step = 0;
  int layer = -1;
};

// Handle of a send that ends later.
using SendTicket = uint64_t;

// Thread rule: one thread, the rank's step thread; Abort from any thread.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Starts all parts and returns when all are done; parts of size 0 are left out on both sides. No
  // part goes to this rank itself. Parts to and from one peer pair up in order; a kSend pairs with
  // a kSend of its group, whatever else is under way between the two ranks. Errors end the instance
  // (see Failed): kDeadline when a peer made no progress for the time-out, with rank, peer,
  // operation, layer and step; kInternal for a divergence; kUnavailable when another rank failed
  // first, with that rank's message.
  virtual Status Exchange(const Operation& operation, std::span<const SendPart> sends,
                          std::span<const RecvPart> recvs) = 0;

  // A send whose buffer the caller keeps untouched until FinishSend; several may be under way.
  virtual Result<SendTicket> StartSend(const Operation& operation, const SendPart& send) = 0;
  virtual Status FinishSend(SendTicket ticket) = 0;

  // Says that this rank is alive and where it is; called between kernels, cheap.
  virtual void Progress(const Place& place) = 0;

  // Ends the instance: every wait of every rank returns `why` from now on, as far as the ranks can
  // be reached.
  virtual void Abort(const Status& why) = 0;
  // The first failure that this rank knows of; OK while there is none.
  virtual Status Failed() const = 0;

  // Time spent waiting in Exchange and FinishSend since start.
  virtual std::chrono::nanoseconds wait_time() const = 0;
};

}  // namespace sixfold
