#include "comm/communicator.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace sixfold {

namespace {

// Two members swap all they have in one exchange and both add everything: the bytes are those of
// the two-step form, one wait less, and twice the additions, which pays while they are short.
constexpr int64_t kOneStepBytes = 262144;

void FillEqualBounds(int64_t elements, int members, Bounds* bounds) {
  bounds->resize(members + 1);
  (*bounds)[0] = 0;
  for (int m = 0; m < members; ++m) (*bounds)[m + 1] = ShareOf(elements, members, m).end;
}

}  // namespace

Bounds EqualBounds(int64_t elements, int members) {
  Bounds bounds;
  FillEqualBounds(elements, members, &bounds);
  return bounds;
}

Communicator::Communicator(Transport& transport, const Cluster& cluster, CommGroup group,
                           Ledger& ledger, ControlTraffic& control)
    : transport_(transport), group_(std::move(group)), ledger_(ledger), control_(control) {
  const auto self = std::find(group_.members.begin(), group_.members.end(), transport.rank());
  SF_CHECK(self != group_.members.end());
  index_ = static_cast<int>(self - group_.members.begin());
  for (const int a : group_.members) {
    link_to_.push_back(cluster.LinkBetween(transport.rank(), a).link);
    for (const int b : group_.members) {
      const LinkClass link = cluster.LinkBetween(a, b).link;
      if (a != b && std::find(links_.begin(), links_.end(), link) == links_.end())
        links_.push_back(link);
    }
  }
  sent_.resize(group_.members.size());
  received_.resize(group_.members.size());
}

int Communicator::size() const { return static_cast<int>(group_.members.size()); }
int Communicator::index() const { return index_; }
const CommGroup& Communicator::group() const { return group_; }

Operation Communicator::Next(CommOp op) {
  return {.op = op, .group = group_.id, .sequence = sequence_++, .axis = group_.axis};
}

void Communicator::SetRecorder(trace::Recorder* recorder) {
  recorder_ = recorder;
  if (recorder_ != nullptr) recorder_->AddGroup(group_.id, group_.members);
}

void Communicator::Count(CommOp op) {
  if (recorder_ != nullptr) recorder_->Begin();
  if (index_ != 0) return;
  for (const LinkClass link : links_) ++ledger_[{group_.axis, op, link}].count;
}

void Communicator::CountBytes(CommOp op, int to, int64_t bytes) {
  if (bytes > 0) ledger_[{group_.axis, op, link_to_[to]}].bytes += bytes;
}

void Communicator::Record(CommOp op, int to, int64_t bytes, int64_t offset) {
  if (op == CommOp::kRoutes) return recorder_->SentMetadata(bytes);
  recorder_->Sent({.member = to,
                   .to = group_.members[to],
                   .axis = static_cast<uint8_t>(group_.axis),
                   .op = static_cast<uint8_t>(op),
                   .link = static_cast<uint8_t>(link_to_[to]),
                   .group = group_.id,
                   .offset = offset,
                   .bytes = bytes});
}

void Communicator::Send(CommOp op, int to, const void* data, int64_t bytes, int64_t offset) {
  if (bytes == 0) return;
  sends_.push_back(
      {group_.members[to], {static_cast<const std::byte*>(data), static_cast<size_t>(bytes)}});
  CountBytes(op, to, bytes);
  if (recorder_ != nullptr) Record(op, to, bytes, offset);
}

void Communicator::ControlSend(int to, std::span<const std::byte> data) {
  if (data.empty()) return;
  sends_.push_back({group_.members[to], data});
  ++control_.messages;
  control_.bytes += static_cast<int64_t>(data.size());
}

void Communicator::Receive(int from, void* data, int64_t bytes) {
  if (bytes == 0) return;
  recvs_.push_back(
      {group_.members[from], {static_cast<std::byte*>(data), static_cast<size_t>(bytes)}});
}

Status Communicator::Run(const Operation& operation) {
  const Status status = transport_.Exchange(operation, sends_, recvs_);
  sends_.clear();
  recvs_.clear();
  if (recorder_ != nullptr) recorder_->End();
  return status;
}

// Every member sends each owner the owner's slice of its nodes; those of others arrive in
// partials_, in the places of their slots.
Status Communicator::ExchangePartials(const Operation& operation, int element, const TreeCut& cut,
                                      const Bounds& bounds, const std::byte* nodes) {
  SF_CHECK_EQ(cut.members(), size());
  SF_CHECK_EQ(bounds.size(), group_.members.size() + 1);
  const int64_t whole = bounds.back() * element;
  const int64_t slice = (bounds[index_ + 1] - bounds[index_]) * element;
  partials_.resize(static_cast<size_t>(cut.total_nodes() * slice));
  for (int m = 0, slot = 0; m < size(); slot += static_cast<int>(cut.nodes[m++].size())) {
    if (m == index_) continue;
    for (size_t n = 0; n < cut.nodes[index_].size(); ++n) {
      const int64_t offset = static_cast<int64_t>(n) * whole + bounds[m] * element;
      Send(operation.op, m, nodes + offset, (bounds[m + 1] - bounds[m]) * element, offset);
    }
    for (size_t n = 0; n < cut.nodes[m].size(); ++n)
      Receive(m, partials_.data() + (slot + static_cast<int64_t>(n)) * slice, slice);
  }
  return Run(operation);
}

// out: elements [begin, begin + count) of the sum of this member's nodes, [elements] each, and the
// others' slices in partials_.
void Communicator::AddSlice(ReduceType type, const TreeCut& cut, const Share& own, int64_t elements,
                            const std::byte* nodes, std::byte* out) {
  const int64_t element = SizeOf(type), slice = own.size() * element;
  slots_.clear();
  for (int m = 0; m < size(); ++m) {
    for (size_t n = 0; n < cut.nodes[m].size(); ++n) {
      slots_.push_back(m == index_
                           ? nodes + (static_cast<int64_t>(n) * elements + own.begin) * element
                           : partials_.data() + static_cast<int64_t>(slots_.size()) * slice);
    }
  }
  sum_.Add(type, cut, slots_, own.size(), out);
}

Status Communicator::ReduceScatter(ReduceType type, const TreeCut& cut, const Bounds& bounds,
                                   const void* nodes, void* out) {
  const auto* const partials = static_cast<const std::byte*>(nodes);
  if (size() > 1) {
    Count(CommOp::kReduceScatter);
    const auto element = static_cast<int>(SizeOf(type));
    SF_RETURN_IF_ERROR(
        ExchangePartials(Next(CommOp::kReduceScatter), element, cut, bounds, partials));
  }
  AddSlice(type, cut, {bounds[index_], bounds[index_ + 1]}, bounds.back(), partials,
           static_cast<std::byte*>(out));
  return OkStatus();
}

Status Communicator::AllReduceOfTwo(ReduceType type, const TreeCut& cut, int64_t elements,
                                    const std::byte* nodes, std::byte* out) {
  const int64_t bytes = elements * SizeOf(type);
  const int other = 1 - index_;
  // The other's slot number, at which AddSlice looks.
  partials_.resize(static_cast<size_t>(2 * bytes));
  Send(CommOp::kAllReduce, other, nodes, bytes, 0);
  Receive(other, partials_.data() + other * bytes, bytes);
  SF_RETURN_IF_ERROR(Run(Next(CommOp::kAllReduce)));
  AddSlice(type, cut, {0, elements}, elements, nodes, out);
  return OkStatus();
}

Status Communicator::AllReduce(ReduceType type, const TreeCut& cut, int64_t elements,
                               const void* nodes, void* out) {
  SF_CHECK_EQ(cut.members(), size());
  const auto* const partials = static_cast<const std::byte*>(nodes);
  auto* const sum = static_cast<std::byte*>(out);
  if (size() == 1) {
    AddSlice(type, cut, {0, elements}, elements, partials, sum);
    return OkStatus();
  }
  Count(CommOp::kAllReduce);
  const int64_t element = SizeOf(type);
  if (size() == 2 && cut.nodes[0].size() == 1 && cut.nodes[1].size() == 1 &&
      elements * element <= kOneStepBytes)
    return AllReduceOfTwo(type, cut, elements, partials, sum);
  FillEqualBounds(elements, size(), &bounds_);
  const Operation operation = Next(CommOp::kAllReduce);
  SF_RETURN_IF_ERROR(
      ExchangePartials(operation, static_cast<int>(element), cut, bounds_, partials));
  AddSlice(type, cut, {bounds_[index_], bounds_[index_ + 1]}, elements, partials,
           sum + bounds_[index_] * element);
  bounds_bytes_ = bounds_;
  for (int64_t& bound : bounds_bytes_) bound *= element;
  QueueAllGather(CommOp::kAllReduce, bounds_bytes_, sum);
  return Run(operation);
}

void Communicator::QueueAllGather(CommOp op, const Bounds& bounds_bytes, std::byte* all) {
  SF_CHECK_EQ(bounds_bytes.size(), group_.members.size() + 1);
  for (int m = 0; m < size(); ++m) {
    if (m == index_) continue;
    Send(op, m, all + bounds_bytes[index_], bounds_bytes[index_ + 1] - bounds_bytes[index_],
         bounds_bytes[index_]);
    Receive(m, all + bounds_bytes[m], bounds_bytes[m + 1] - bounds_bytes[m]);
  }
}

Status Communicator::AllGather(const Bounds& bounds_bytes, std::byte* all, CommOp op) {
  if (size() == 1) return OkStatus();
  Count(op);
  QueueAllGather(op, bounds_bytes, all);
  return Run(Next(op));
}

Status Communicator::Gather(int root, const Bounds& bounds_bytes, const std::byte* mine,
                            std::byte* all) {
  SF_CHECK_EQ(bounds_bytes.size(), group_.members.size() + 1);
  const int64_t bytes = bounds_bytes[index_ + 1] - bounds_bytes[index_];
  if (index_ == root && bytes > 0 && mine != all + bounds_bytes[index_])
    std::memmove(all + bounds_bytes[index_], mine, static_cast<size_t>(bytes));
  if (size() == 1) return OkStatus();
  Count(CommOp::kGather);
  if (index_ != root) {
    Send(CommOp::kGather, root, mine, bytes, bounds_bytes[index_]);
  } else {
    for (int m = 0; m < size(); ++m) {
      if (m != root) Receive(m, all + bounds_bytes[m], bounds_bytes[m + 1] - bounds_bytes[m]);
    }
  }
  return Run(Next(CommOp::kGather));
}

Status Communicator::AllToAll(std::span<const std::span<const std::byte>> send,
                              std::span<const std::span<std::byte>> recv, CommOp op) {
  SF_CHECK_EQ(send.size(), group_.members.size());
  SF_CHECK_EQ(recv.size(), group_.members.size());
  SF_CHECK_EQ(send[index_].size(), recv[index_].size());
  if (!send[index_].empty() && send[index_].data() != recv[index_].data())
    std::memmove(recv[index_].data(), send[index_].data(), send[index_].size());
  if (size() == 1) return OkStatus();
  Count(op);
  for (int m = 0; m < size(); ++m) {
    if (m == index_) continue;
    Send(op, m, send[m].data(), static_cast<int64_t>(send[m].size()), 0);
    Receive(m, recv[m].data(), static_cast<int64_t>(recv[m].size()));
  }
  return Run(Next(op));
}

Result<SendTicket> Communicator::StartSend(int to, std::span<const std::byte> data) {
  SF_CHECK_NE(to, index_);
  ++ledger_[{group_.axis, CommOp::kSend, link_to_[to]}].count;
  CountBytes(CommOp::kSend, to, static_cast<int64_t>(data.size()));
  if (recorder_ != nullptr) {
    recorder_->Begin();
    if (!data.empty()) Record(CommOp::kSend, to, static_cast<int64_t>(data.size()), 0);
  }
  const Operation operation = {
      .op = CommOp::kSend, .group = group_.id, .sequence = sent_[to]++, .axis = group_.axis};
  return transport_.StartSend(operation, {group_.members[to], data});
}

Status Communicator::FinishSend(SendTicket ticket) { return transport_.FinishSend(ticket); }

Status Communicator::Recv(int from, std::span<std::byte> data) {
  SF_CHECK_NE(from, index_);
  Receive(from, data.data(), static_cast<int64_t>(data.size()));
  return Run({.op = CommOp::kSend,
              .group = group_.id,
              .sequence = received_[from]++,
              .axis = group_.axis});
}

Status Communicator::Broadcast(int root, std::vector<std::byte>* data) {
  if (size() == 1) return OkStatus();
  const Operation operation = Next(CommOp::kBroadcast);
  uint64_t bytes = data->size();
  const auto size_bytes = std::as_writable_bytes(std::span(&bytes, 1));
  if (index_ == root) {
    for (int m = 0; m < size(); ++m) {
      if (m == root) continue;
      ControlSend(m, size_bytes);
      ControlSend(m, *data);
    }
    return Run(operation);
  }
  Receive(root, &bytes, sizeof(bytes));
  SF_RETURN_IF_ERROR(Run(operation));
  data->resize(bytes);
  if (bytes == 0) return OkStatus();
  Receive(root, data->data(), static_cast<int64_t>(bytes));
  return Run(operation);
}

// Dissemination: after round k everybody has heard, at some remove, of 2^(k+1) members.
Status Communicator::Barrier() {
  if (size() == 1) return OkStatus();
  const Operation operation = Next(CommOp::kBarrier);
  const std::byte out{1};
  std::byte in{};
  for (int distance = 1; distance < size(); distance *= 2) {
    ControlSend((index_ + distance) % size(), std::span(&out, 1));
    Receive((index_ + size() - distance) % size(), &in, 1);
    SF_RETURN_IF_ERROR(Run(operation));
  }
  return OkStatus();
}

}  // namespace sixfold
