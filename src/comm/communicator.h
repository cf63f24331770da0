// Collectives among the ranks of one group, over any Transport. They move bytes and add locally in
// the order of a tree: no library sums for us, since its order would depend on sizes and counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/ledger.h"
#include "comm/reduce_type.h"
#include "comm/transport.h"
#include "comm/tree_sum.h"
#include "mesh/cluster.h"
#include "mesh/tree_cut.h"
#include "trace/recorder.h"

namespace sixfold {

struct CommGroup {
  Axis axis = Axis::kTp;     // under which its traffic is counted
  int id = 0;                // equal on all members, unlike every other group's of the instance
  std::vector<int> members;  // global ranks; this rank is one of them
};

// Who keeps which elements of a reduction or gathers which: [members + 1], ascending from 0.
using Bounds = std::vector<int64_t>;
Bounds EqualBounds(int64_t elements, int members);  // sizes differ by at most one, larger first

// All functions are collective: every member calls them in the same order with matching sizes.
// Sizes may be zero, also for some members only. `op`: under which name a call is counted and
// reported. Errors: Transport::Exchange's. Groups of one member move and count nothing. Thread
// rule: the rank's step thread.
class Communicator {
 public:
  // The transport outlives it. Traffic goes to `ledger` (payload) and `control` (Broadcast,
  // Barrier).
  Communicator(Transport& transport, const Cluster& cluster, CommGroup group, Ledger& ledger,
               ControlTraffic& control);

  // Writes down every payload part that leaves this rank. Before each operation its call site says what the operation's
  // buffer holds (trace/recorder.h: CarryRows, CarryItems, CarryPieces); offsets count as follows. ReduceScatter, AllReduce:
  // from `nodes`, and from `out` for the sum's way back. AllGather, Gather: from `all`. AllToAll: from send[i], a list for
  // each member. StartSend: from `data`. Null, the default, turns it off; the recorder outlives this object.
  void SetRecorder(trace::Recorder* recorder);

  int size() const;
  int index() const;  // of this rank in the group
  const CommGroup& group() const;

  // `nodes`: this member's partial sums, one after the other, each [bounds.back()] elements; as
  // many as cut.nodes[index()]. out: elements [bounds[index], bounds[index + 1]) of the sum over
  // all nodes, added as AddsOf(cut) says.
  Status ReduceScatter(ReduceType type, const TreeCut& cut, const Bounds& bounds, const void* nodes,
                       void* out);
  // ReduceScatter with equal bounds and then AllGather, counted as one operation. out: [elements].
  Status AllReduce(ReduceType type, const TreeCut& cut, int64_t elements, const void* nodes,
                   void* out);
  // Member i gives bytes [bounds[i], bounds[i + 1]), which lie at their place in `all` already; the
  // others' are filled in.
  Status AllGather(const Bounds& bounds_bytes, std::byte* all, CommOp op = CommOp::kAllGather);
  // The same, to member `root` only. Others may pass their own part alone, with `all` pointing to
  // where byte 0 would be.
  Status Gather(int root, const Bounds& bounds_bytes, const std::byte* mine, std::byte* all);
  // send[i] goes to member i, recv[i] comes from it; a member's part to itself is copied.
  Status AllToAll(std::span<const std::span<const std::byte>> send,
                  std::span<const std::span<std::byte>> recv, CommOp op = CommOp::kAllToAll);
  // To one member, done later; buffers as Transport says. The receiver calls Recv with the same
  // size.
  Result<SendTicket> StartSend(int to, std::span<const std::byte> data);
  Status FinishSend(SendTicket ticket);
  Status Recv(int from, std::span<std::byte> data);
  // Control. Broadcast of a size that only root knows: first the size, then the bytes; *data is
  // resized on the others.
  Status Broadcast(int root, std::vector<std::byte>* data);
  Status Barrier();

 private:
  Operation Next(CommOp op);
  // Count the operation under the links of the group; add bytes of one part.
  void Count(CommOp op);
  void CountBytes(CommOp op, int to, int64_t bytes);
  void ControlSend(int to, std::span<const std::byte> data);
  // Queue a part for Run; the caller counts. offset: bytes of the buffer before it, see SetRecorder.
  void Send(CommOp op, int to, const void* data, int64_t bytes, int64_t offset);
  void Record(CommOp op, int to, int64_t bytes, int64_t offset);
  void Receive(int from, void* data, int64_t bytes);
  Status Run(const Operation& operation);  // exchanges what is queued

  Status ExchangePartials(const Operation& operation, int element, const TreeCut& cut,
                          const Bounds& bounds, const std::byte* nodes);
  void AddSlice(ReduceType type, const TreeCut& cut, const Share& own, int64_t elements,
                const std::byte* nodes, std::byte* out);
  Status AllReduceOfTwo(ReduceType type, const TreeCut& cut, int64_t elements,
                        const std::byte* nodes, std::byte* out);
  void QueueAllGather(CommOp op, const Bounds& bounds_bytes, std::byte* all);

  Transport& transport_;
  CommGroup group_;
  Ledger& ledger_;
  ControlTraffic& control_;
  trace::Recorder* recorder_ = nullptr;
  int index_ = 0;
  std::vector<LinkClass> link_to_;         // [members]
  std::vector<LinkClass> links_;           // that join two members, each once
  uint64_t sequence_ = 0;                  // of the next collective
  std::vector<uint64_t> sent_, received_;  // [members] of kSend
  TreeSum sum_;

  // Reused from call to call, so that none allocates once warm.
  std::vector<std::byte> partials_;  // [nodes of the cut][own slice]
  std::vector<const std::byte*> slots_;
  std::vector<SendPart> sends_;
  std::vector<RecvPart> recvs_;
  Bounds bounds_, bounds_bytes_;
};

}  // namespace sixfold
