#include "comm/mpi/mpi_transport.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/check.h"
#include "base/machine.h"

namespace sixfold::mpi {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Yielding is polling: it is quick when the peer has a core of its own, and worth less than sleep
// when it needs this one.
constexpr auto kYield = milliseconds(2);
constexpr auto kYieldWhenCrowded = microseconds(100);
constexpr auto kShortestSleep = microseconds(50);
constexpr auto kLongestSleep = milliseconds(2);
constexpr auto kNews = milliseconds(5);     // between looks at reports and failures
constexpr auto kBeat = milliseconds(1000);  // between reports of a busy rank, at most
constexpr auto kLastWords = milliseconds(1000);

}  // namespace

MpiTransport::MpiTransport(Wires& wires, const MpiWorldOptions& options)
    : wires_(wires),
      may_spin_(wires.ranks_on_cores() * options.threads_per_rank <= UsableCores()),
      tags_(wires.tag_max()),
      watch_(wires.rank(), wires.world(), options.timeout),
      bulletin_(wires, options.timeout),
      exchange_(wires) {
  SF_CHECK_GT(options.timeout.count(), 0);
}

MpiTransport::~MpiTransport() = default;

Status MpiTransport::Failed() const {
  if (!failed_.load(std::memory_order_acquire)) return OkStatus();
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status MpiTransport::Fail(const Status& why) {
  const std::lock_guard lock(mutex_);
  return FailLocked(why);
}

Status MpiTransport::FailLocked(const Status& why) {
  SF_CHECK(!why.ok());
  if (failed_.load(std::memory_order_relaxed)) return failure_;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  bulletin_.LastWords(why.message(), kLastWords);
  return why;
}

void MpiTransport::Abort(const Status& why) { static_cast<void>(Fail(why).ok()); }

void MpiTransport::TakeNews() {
  const std::optional<std::string> failure = bulletin_.Read();
  if (!failure.has_value() || failed_.load(std::memory_order_relaxed)) return;
  failure_ = Status(StatusCode::kUnavailable, *failure);
  failed_.store(true, std::memory_order_release);
}

void MpiTransport::Progress(const Place& place) {
  if (failed_.load(std::memory_order_acquire)) return;
  bulletin_.SetPlace(place);
  bulletin_.CountProgress();
  const SteadyClock::time_point now = SteadyClock::now();
  // Late sends over a network move on only while MPI is called.
  if (now < next_news_ && late_under_way_ == 0) return;
  const std::lock_guard lock(mutex_);
  TakeNews();
  next_news_ = now + kNews;
  if (now < next_beat_) return;
  bulletin_.Report();
  next_beat_ = now + std::min<SteadyClock::duration>(watch_.timeout() / 8, kBeat);
}

Status MpiTransport::Exchange(const Operation& operation, std::span<const SendPart> sends,
                              std::span<const RecvPart> recvs) {
  if (failed_.load(std::memory_order_acquire)) return Failed();
  const Lane lane = operation.op == CommOp::kSend ? Lane::kLate : Lane::kCollective;
  const int tag = tags_.Of(operation);
  {
    const std::lock_guard lock(mutex_);
    bulletin_.Begin(operation);
    Status status;
    for (const RecvPart& part : recvs) {
      SF_CHECK(part.peer >= 0 && part.peer < world() && part.peer != rank());
      if (status.ok()) status = exchange_.Receive(lane, part.peer, tag, part.data);
    }
    for (const SendPart& part : sends) {
      SF_CHECK(part.peer >= 0 && part.peer < world() && part.peer != rank());
      if (status.ok()) status = exchange_.Send(lane, part.peer, tag, part.data);
    }
    if (!status.ok()) {
      exchange_.GiveUp();
      return FailLocked(status.WithContext(Describe(Here(operation))));
    }
  }
  return Complete(exchange_, operation);
}

Result<SendTicket> MpiTransport::StartSend(const Operation& operation, const SendPart& send) {
  if (failed_.load(std::memory_order_acquire)) return Failed();
  SF_CHECK(send.peer >= 0 && send.peer < world() && send.peer != rank());
  const std::lock_guard lock(mutex_);
  bulletin_.Begin(operation);
  if (send.data.empty()) return SendTicket{0};
  if (free_late_.empty()) {
    free_late_.push_back(late_.size());
    late_.push_back(std::make_unique<RequestSet>(wires_));
    late_operations_.emplace_back();
  }
  const size_t number = free_late_.back();
  free_late_.pop_back();
  late_operations_[number] = operation;
  ++late_under_way_;
  const Status status = late_[number]->Send(Lane::kLate, send.peer, tags_.Of(operation), send.data);
  if (!status.ok()) return FailLocked(status.WithContext(Describe(Here(operation))));
  return SendTicket{number} + 1;
}

Status MpiTransport::FinishSend(SendTicket ticket) {
  if (ticket == 0) return Failed();
  const auto number = static_cast<size_t>(ticket - 1);
  SF_CHECK_LT(number, late_.size());
  if (failed_.load(std::memory_order_acquire)) return Failed();
  SF_RETURN_IF_ERROR(Complete(*late_[number], late_operations_[number]));
  free_late_.push_back(number);
  --late_under_way_;
  return OkStatus();
}

Status MpiTransport::Complete(RequestSet& set, const Operation& operation) {
  Status status;
  {
    const std::lock_guard lock(mutex_);
    status = set.Poll();
  }
  if (status.ok() && !set.done()) status = WaitUntilComplete(set, operation);
  if (status.ok()) status = CheckSizes(set, operation);
  bulletin_.CountProgress();
  if (status.ok()) return status;
  // Another's failure arrives as kUnavailable and is kept already; this rank's own is told.
  const std::lock_guard lock(mutex_);
  status = FailLocked(status);
  set.GiveUp();
  return status;
}

Status MpiTransport::CheckSizes(RequestSet& set, const Operation& operation) {
  if (set.wrong_sizes().empty()) return OkStatus();
  const WrongSize& wrong = set.wrong_sizes().front();
  return SizeDivergence(rank(), Here(operation), wrong.expected, wrong.peer, wrong.got);
}

Status MpiTransport::WaitUntilComplete(RequestSet& set, const Operation& operation) {
  const SteadyClock::time_point begin = SteadyClock::now();
  const auto tick = std::min<SteadyClock::duration>(watch_.timeout() / 16, milliseconds(500));
  SteadyClock::time_point now = begin, next_tick = begin + tick;
  watch_.BeginWait(begin);
  diverged_at_.reset();
  Status status;
  while (status.ok() && !set.done()) {
    Rest(now - begin);
    now = SteadyClock::now();
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) {
      status = failure_;
      break;
    }
    status = set.Poll();
    if (!status.ok() || set.done()) {
      if (!status.ok()) status = status.WithContext(Describe(Here(operation)));
      break;
    }
    if (now >= next_news_) {
      TakeNews();
      next_news_ = now + kNews;
    }
    if (now < next_tick) continue;
    next_tick = now + tick;
    status = Tick(set, operation, now);
  }
  bulletin_.SetWaitsFor(-1);
  wait_ns_.fetch_add((SteadyClock::now() - begin).count(), std::memory_order_relaxed);
  return status;
}

// Of a wait that lasts: says that this rank waits and for whom, and looks whether to go on.
Status MpiTransport::Tick(RequestSet& set, const Operation& operation,
                          SteadyClock::time_point now) {
  TakeNews();
  if (failed_.load(std::memory_order_relaxed)) return failure_;
  SF_RETURN_IF_ERROR(LookForDivergence(set, operation, now));
  awaited_.clear();
  set.AppendPeers(&awaited_);
  if (awaited_.empty()) return OkStatus();
  const Watch::Stall stall = watch_.WorstOf(awaited_, now, bulletin_);
  bulletin_.SetWaitsFor(stall.peer);
  if (now >= next_beat_ || bulletin_.outdated()) {
    bulletin_.Report();
    next_beat_ = now + watch_.timeout() / 8;
  }
  if (stall.span < watch_.timeout()) return OkStatus();
  return watch_.Expired(Here(operation), stall.peer, now, bulletin_);
}

// A message of an awaited peer that no receive fits came before the one awaited, for messages of
// one lane do not overtake each other: the peer is somewhere else in its program.
Status MpiTransport::LookForDivergence(RequestSet& set, const Operation& operation,
                                       SteadyClock::time_point now) {
  if (operation.op == CommOp::kSend) return OkStatus();
  awaited_.clear();
  set.AppendPeers(&awaited_);
  for (const int peer : awaited_) {
    Arrival arrival;
    if (!wires_.Probe(Lane::kCollective, peer, kAny, &arrival)) continue;
    SF_RETURN_IF_ERROR(set.Poll());  // the one awaited may have come just before it
    if (!set.Receiving(peer)) continue;
    // Certain by now; the peer's report says soon where the two parted.
    if (!diverged_at_.has_value()) diverged_at_ = now;
    if (now - *diverged_at_ < watch_.timeout() / 4) return OkStatus();
    const OperationRecord there = {tags_.Read(arrival.tag, operation),
                                   bulletin_.ReportOf(peer).place};
    return Divergence(rank(), Here(operation), peer, there, bulletin_);
  }
  return OkStatus();
}

void MpiTransport::Rest(SteadyClock::duration waited) const {
  if (waited < (may_spin_ ? SteadyClock::duration(kYield) : kYieldWhenCrowded)) {
    sched_yield();
    return;
  }
  std::this_thread::sleep_for(
      std::clamp<SteadyClock::duration>(waited / 50, kShortestSleep, kLongestSleep));
}

void MpiTransport::Linger(milliseconds span) {
  const SteadyClock::time_point end = SteadyClock::now() + span;
  while (SteadyClock::now() < end) {
    if (mutex_.try_lock()) {
      TakeNews();
      mutex_.unlock();
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace sixfold::mpi
