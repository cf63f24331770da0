#include "comm/local/local_transport.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace sixfold::local {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A peer that is about to arrive is met without a system call; one that computes for longer gets
// the core, by yielding while waking it up would cost more than the wait, then by sleeping.
constexpr auto kSpin = microseconds(30);
constexpr auto kYield = microseconds(400);
constexpr int kYieldsWhenCrowded = 2;  // more ranks than cores: rounds before sleeping
constexpr auto kFirstSleep = milliseconds(2);
constexpr auto kLongestSleep = milliseconds(500);
constexpr int kPollsPerClock = 8;
// The kernel wakes a sleeper so much late, so the last of the wait for an emulated link is spent awake.
constexpr auto kTimerSlack = microseconds(100);

}  // namespace

LocalTransport::LocalTransport(Shared& shared, int rank)
    : shared_(shared),
      rank_(rank),
      state_(shared.state(rank)),
      watch_(rank, shared.ranks(), shared.timeout()),
      inbox_(shared.ranks()),
      eager_(shared.ranks()),
      eager_sent_(shared.ranks()) {
  if (shared.emulated() == nullptr) return;
  inside_ = EmulatedPort(shared.emulated()->inside);
  between_ = EmulatedPort(shared.emulated()->between);
}

void LocalTransport::Progress(const Place& place) {
  state_.step.store(place.step, std::memory_order_relaxed);
  state_.layer.store(place.layer, std::memory_order_relaxed);
  // Only this thread writes it: no locked addition needed.
  state_.progress.store(state_.progress.load(std::memory_order_relaxed) + 1,
                        std::memory_order_release);
}

void LocalTransport::BeginOperation(const Operation& operation) {
  operation_ = operation;
  const uint64_t number = state_.operations.load(std::memory_order_relaxed);
  std::atomic<uint64_t>* words = &state_.history[number % kHistory * 3];
  const PackedRecord record = Pack(Here());
  for (size_t w = 0; w < record.size(); ++w) words[w].store(record[w], std::memory_order_relaxed);
  state_.operations.store(number + 1, std::memory_order_release);
  EndOperation();
}

void LocalTransport::EndOperation() {
  state_.progress.store(state_.progress.load(std::memory_order_relaxed) + 1,
                        std::memory_order_release);
}

uint64_t LocalTransport::ProgressOf(int rank) const {
  return shared_.state(rank).progress.load(std::memory_order_acquire);
}

int LocalTransport::WaitsFor(int rank) const {
  return shared_.state(rank).waits_for.load(std::memory_order_acquire);
}

RankSight LocalTransport::ReportOf(int rank) const {
  const RankState& state = shared_.state(rank);
  RankSight report{.place = {.step = state.step.load(std::memory_order_relaxed),
                              .layer = state.layer.load(std::memory_order_relaxed)},
                    .waits_for = WaitsFor(rank)};
  const uint64_t end = state.operations.load(std::memory_order_acquire);
  for (uint64_t n = end > kHistory ? end - kHistory : 0; n < end; ++n) {
    const std::atomic<uint64_t>* words = &state.history[n % kHistory * 3];
    PackedRecord record;
    for (size_t w = 0; w < record.size(); ++w) record[w] = words[w].load(std::memory_order_relaxed);
    report.history.push_back(Unpack(record));
  }
  return report;
}

void LocalTransport::Emulate(Message* message, int peer) {
  const Cluster& cluster = *shared_.emulated();
  EmulatedPort& port = cluster.NodeOf(rank_) == cluster.NodeOf(peer) ? inside_ : between_;
  message->arrival = port.Carry(message->size, SteadyClock::now());
}

void LocalTransport::Publish(Message* message, const Operation& operation, int peer) {
  message->operation = operation;
  if (shared_.emulated() != nullptr) [[unlikely]]
    Emulate(message, peer);
  message->state.store(Message::kPosted, std::memory_order_relaxed);
  std::atomic<Message*>& newest = shared_.channel(rank_, peer).newest;
  message->next = newest.load(std::memory_order_relaxed);
  // seq_cst: the receiver says that it sleeps and then looks here; this looks there afterwards.
  while (!newest.compare_exchange_weak(message->next, message, std::memory_order_seq_cst)) {
  }
  Bell& bell = shared_.bell(peer);
  Notify(bell, bell.messages_awaited);
}

bool LocalTransport::PostEagerly(const Operation& operation, const SendPart& send) {
  const bool control = operation.op == CommOp::kBroadcast || operation.op == CommOp::kBarrier;
  if (!control || send.data.size() > kEagerBytes) return false;
  std::unique_ptr<EagerSlots>& slots = eager_[send.peer];
  if (slots == nullptr) slots = std::make_unique<EagerSlots>();
  EagerMessage& slot = (*slots)[eager_sent_[send.peer] % kEagerSlots];
  if (slot.message.state.load(std::memory_order_acquire) != Message::kDone) return false;
  ++eager_sent_[send.peer];
  std::memcpy(slot.data.data(), send.data.data(), send.data.size());
  slot.message.data = slot.data.data();
  slot.message.size = send.data.size();
  slot.message.eager = true;
  Publish(&slot.message, operation, send.peer);
  return true;
}

uint32_t LocalTransport::Post(const Operation& operation, const SendPart& send) {
  SF_CHECK(send.peer >= 0 && send.peer < world() && send.peer != rank_);
  if (PostEagerly(operation, send)) return kNone;
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(messages_.size()));
    messages_.push_back(std::make_unique<Message>());
    receiver_.push_back(-1);
  }
  const uint32_t number = free_.back();
  free_.pop_back();
  receiver_[number] = send.peer;
  Message* message = messages_[number].get();
  message->data = send.data.data();
  message->size = send.data.size();
  Publish(message, operation, send.peer);
  return number;
}

Status LocalTransport::Exchange(const Operation& operation, std::span<const SendPart> sends,
                                std::span<const RecvPart> recvs) {
  if (shared_.failed()) return Failed();
  BeginOperation(operation);
  recvs_.clear();
  sends_.clear();
  for (const RecvPart& part : recvs) {
    SF_CHECK(part.peer >= 0 && part.peer < world() && part.peer != rank_);
    if (!part.data.empty()) recvs_.push_back(part);
  }
  for (const SendPart& part : sends) {
    if (part.data.empty()) continue;
    const uint32_t number = Post(operation, part);
    if (number != kNone) sends_.push_back(number);
  }
  const Status status = Complete();
  EndOperation();
  return status;
}

Result<SendTicket> LocalTransport::StartSend(const Operation& operation, const SendPart& send) {
  if (shared_.failed()) return Failed();
  BeginOperation(operation);
  if (send.data.empty()) return SendTicket{0};
  const uint32_t number = Post(operation, send);
  return number == kNone ? SendTicket{0} : SendTicket{number} + 1;
}

Status LocalTransport::FinishSend(SendTicket ticket) {
  if (ticket == 0) return Failed();
  const auto number = static_cast<uint32_t>(ticket - 1);
  SF_CHECK_LT(number, messages_.size());
  operation_ = messages_[number]->operation;
  recvs_.clear();
  sends_.assign(1, number);
  const Status status = Complete();
  EndOperation();
  return status;
}

Status LocalTransport::Complete() {
  if (!Poll() || !Done()) {
    SF_RETURN_IF_ERROR(WaitUntilComplete());
  }
  return OkStatus();
}

// Receives and sees off what it can; false when the instance has failed.
bool LocalTransport::Poll() {
  if (shared_.failed()) return false;
  ++pass_;
  next_arrival_ = SteadyClock::time_point::max();
  size_t kept = 0;
  for (size_t i = 0; i < recvs_.size(); ++i) {
    const RecvPart part = recvs_[i];
    Inbox& inbox = inbox_[part.peer];
    if (inbox.empty_in_pass != pass_) {
      const Outcome outcome = Receive(part);
      if (outcome == Outcome::kDiverged) return false;
      if (outcome == Outcome::kReceived) continue;
      inbox.empty_in_pass = pass_;
    }
    recvs_[kept++] = part;
  }
  recvs_.resize(kept);
  kept = 0;
  for (const uint32_t number : sends_) {
    const bool done = messages_[number]->state.load(std::memory_order_seq_cst) == Message::kDone;
    (done ? free_.emplace_back() : sends_[kept++]) = number;
  }
  sends_.resize(kept);
  return true;
}

void LocalTransport::TakeArrivals(int peer) {
  std::atomic<Message*>& newest = shared_.channel(peer, rank_).newest;
  if (newest.load(std::memory_order_seq_cst) == nullptr) return;
  Message* at = newest.exchange(nullptr, std::memory_order_acquire);
  Inbox& inbox = inbox_[peer];
  Message* const last = at;
  Message* oldest = nullptr;
  while (at != nullptr) {  // newest first: turn round
    Message* const older = at->next;
    at->next = oldest;
    oldest = at;
    at = older;
  }
  (inbox.first == nullptr ? inbox.first : inbox.last->next) = oldest;
  inbox.last = last;
}

Message* LocalTransport::Find(int peer) {
  const bool late = operation_.op == CommOp::kSend;
  for (Message* m = inbox_[peer].first; m != nullptr; m = m->next) {
    const bool is_late = m->operation.op == CommOp::kSend;
    if (late ? is_late && m->operation.group == operation_.group : !is_late) return m;
  }
  return nullptr;
}

void LocalTransport::Unlink(int peer, Message* message) {
  Inbox& inbox = inbox_[peer];
  Message* before = nullptr;
  for (Message* m = inbox.first; m != message; m = m->next) before = m;
  (before == nullptr ? inbox.first : before->next) = message->next;
  if (inbox.last == message) inbox.last = before;
}

LocalTransport::Outcome LocalTransport::Receive(const RecvPart& part) {
  Message* message = Find(part.peer);
  if (message == nullptr) {
    TakeArrivals(part.peer);
    message = Find(part.peer);
    if (message == nullptr) return Outcome::kNothing;
  }
  const Operation& sent = message->operation;
  if (sent.op != operation_.op || sent.group != operation_.group ||
      sent.sequence != operation_.sequence) {
    const RankState& peer = shared_.state(part.peer);
    shared_.Fail(rank_,
                 Divergence(rank_, Here(), part.peer, {sent, {peer.step, peer.layer}}, *this));
    return Outcome::kDiverged;
  }
  if (message->size != part.data.size()) {
    shared_.Fail(rank_, SizeDivergence(rank_, Here(), static_cast<int64_t>(part.data.size()),
                                       part.peer, static_cast<int64_t>(message->size)));
    return Outcome::kDiverged;
  }
  if (shared_.emulated() != nullptr) [[unlikely]] {
    if (message->arrival > SteadyClock::now()) {
      next_arrival_ = std::min(next_arrival_, message->arrival);
      return Outcome::kNothing;
    }
  }
  Unlink(part.peer, message);
  return Copy(message, part) ? Outcome::kReceived : Outcome::kNothing;
}

bool LocalTransport::Copy(Message* message, const RecvPart& part) {
  uint32_t posted = Message::kPosted;
  if (!message->state.compare_exchange_strong(posted, Message::kClaimed,
                                              std::memory_order_acquire)) {
    return false;  // withdrawn: the instance has failed, the next Poll says so
  }
  std::memcpy(part.data.data(), message->data, part.data.size());
  const bool eager = message->eager;  // the sender may take the message back once it is done
  message->state.store(Message::kDone, std::memory_order_seq_cst);
  if (eager) return true;
  Bell& bell = shared_.bell(part.peer);
  Notify(bell, bell.sends_awaited);
  return true;
}

Status LocalTransport::WaitUntilComplete() {
  const SteadyClock::time_point begin = SteadyClock::now();
  SteadyClock::time_point now = begin, next_check = begin + kYield;
  watch_.BeginWait(begin);
  // So that others can follow the chain of waits; CheckDeadline refines it.
  if (!Done()) {
    state_.waits_for.store(recvs_.empty() ? receiver_[sends_.front()] : recvs_.front().peer,
                           std::memory_order_release);
  }
  for (int round = 0; Poll() && !Done(); ++round) {
    now = SteadyClock::now();
    if (now >= next_check) {
      const Status expired = CheckDeadline(now);
      if (!expired.ok()) {
        shared_.Fail(rank_, expired);
        break;
      }
      next_check = now + std::min<SteadyClock::duration>(watch_.timeout() / 16, kLongestSleep);
    }
    Rest(now - begin, round);
  }
  state_.waits_for.store(-1, std::memory_order_release);
  wait_ns_.fetch_add((SteadyClock::now() - begin).count(), std::memory_order_relaxed);
  if (!shared_.failed() || Done()) return OkStatus();
  Withdraw();
  return Failed();
}

// One round of waiting that found nothing.
void LocalTransport::Rest(SteadyClock::duration waited, int rounds) {
  if (AwaitsArrival()) {
    RestUntilArrival();
  } else if (shared_.may_spin() && waited < kSpin) {
    for (int i = 0; i < kPollsPerClock; ++i) {
      CpuRelax();
      const size_t pending = Pending();
      if (!Poll() || Pending() != pending) return;
    }
  } else if (shared_.may_spin() ? waited < kYield : rounds < kYieldsWhenCrowded) {
    sched_yield();
  } else {
    // Longer the longer it lasts: a tick serves deadlines only.
    const auto longest = std::min<SteadyClock::duration>(watch_.timeout() / 16,
                                                         SteadyClock::duration(kLongestSleep));
    Sleep(std::clamp<SteadyClock::duration>(waited, kFirstSleep,
                                            std::max<SteadyClock::duration>(longest, kFirstSleep)));
  }
}

void LocalTransport::RestUntilArrival() {
  const SteadyClock::duration left = next_arrival_ - SteadyClock::now();
  if (left > kTimerSlack) {
    Sleep(std::min<SteadyClock::duration>(left - kTimerSlack, watch_.timeout() / 16));
  } else if (shared_.may_spin()) {
    CpuRelax();
  } else {
    sched_yield();
  }
}

void LocalTransport::Sleep(std::chrono::nanoseconds span) {
  Bell& bell = shared_.bell(rank_);
  const uint32_t rings = bell.rings.load(std::memory_order_seq_cst);
  // Arrivals first: peers need this rank to copy before they can see off their own sends.
  const bool for_messages = !recvs_.empty();
  std::atomic<int>& awaited = for_messages ? bell.messages_awaited : bell.sends_awaited;
  const size_t pending = Pending();
  // What an emulated link carries has rung already, so with such messages the next ring may be the last.
  const bool awaits_arrival = AwaitsArrival();
  const size_t needed = awaits_arrival ? 1 : for_messages ? recvs_.size() : sends_.size();
  awaited.store(static_cast<int>(needed), std::memory_order_seq_cst);
  if (Poll() && Pending() == pending && AwaitsArrival() == awaits_arrival)
    FutexWait(bell.rings, rings, span);
  awaited.store(0, std::memory_order_seq_cst);
}

Status LocalTransport::CheckDeadline(SteadyClock::time_point now) {
  awaited_.clear();
  for (const RecvPart& part : recvs_) {
    // An emulated link carries the next one: its sender did what it had to, the link is slow.
    const bool arriving = AwaitsArrival() && Find(part.peer) != nullptr;
    if (!arriving) awaited_.push_back(part.peer);
  }
  // Nor is this rank to blame for what waits for it meanwhile.
  if (AwaitsArrival()) EndOperation();
  for (const uint32_t number : sends_) awaited_.push_back(receiver_[number]);
  if (awaited_.empty()) return OkStatus();
  const Watch::Stall stall = watch_.WorstOf(awaited_, now, *this);
  state_.waits_for.store(stall.peer, std::memory_order_release);
  if (stall.span < watch_.timeout()) return OkStatus();
  return watch_.Expired(Here(), stall.peer, now, *this);
}

// After a failure: takes back what no receiver has claimed, and lets those finish that have, since
// the caller's memory goes away.
void LocalTransport::Withdraw() {
  for (const uint32_t number : sends_) {
    std::atomic<uint32_t>& state = messages_[number]->state;
    uint32_t posted = Message::kPosted;
    if (state.compare_exchange_strong(posted, Message::kWithdrawn, std::memory_order_acq_rel))
      continue;
    while (state.load(std::memory_order_acquire) == Message::kClaimed) sched_yield();
  }
}

}  // namespace sixfold::local
