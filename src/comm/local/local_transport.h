// One rank's Transport over Shared. Internal to local/.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "comm/local/emulated_port.h"
#include "comm/local/shared.h"
#include "comm/transport.h"
#include "comm/watch.h"

namespace sixfold::local {

// Thread rule: Transport's. `shared` outlives it.
class LocalTransport : public Transport, private RankView {
 public:
  LocalTransport(Shared& shared, int rank);

  int rank() const override { return rank_; }
  int world() const override { return shared_.ranks(); }
  Status Exchange(const Operation& operation, std::span<const SendPart> sends,
                  std::span<const RecvPart> recvs) override;
  Result<SendTicket> StartSend(const Operation& operation, const SendPart& send) override;
  Status FinishSend(SendTicket ticket) override;
  void Progress(const Place& place) override;
  void Abort(const Status& why) override { shared_.Fail(rank_, why); }
  Status Failed() const override { return shared_.FailureFor(rank_); }
  std::chrono::nanoseconds wait_time() const override {
    return std::chrono::nanoseconds(wait_ns_.load(std::memory_order_relaxed));
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Messages of one peer that this rank has taken from the channel and not yet received.
  struct Inbox {
    Message* first = nullptr;  // oldest
    Message* last = nullptr;
    uint64_t empty_in_pass = 0;  // Poll() pass that found nothing: later parts have to wait
  };

  uint64_t ProgressOf(int rank) const override;
  int WaitsFor(int rank) const override;
  RankSight ReportOf(int rank) const override;
  std::string ProcessOf(int /*rank*/) const override { return ThisProcess(); }

  void BeginOperation(const Operation& operation);
  void EndOperation();
  // Number of the message whose end is to be awaited, kNone when there is nothing to await.
  uint32_t Post(const Operation& operation, const SendPart& send);
  bool PostEagerly(const Operation& operation, const SendPart& send);
  void Publish(Message* message, const Operation& operation, int peer);
  void Emulate(Message* message, int peer);

  // Until nothing of recvs_ and sends_ is pending, or the instance has failed.
  Status Complete();
  bool Poll();
  Status WaitUntilComplete();
  void Rest(SteadyClock::duration waited, int rounds);
  void RestUntilArrival();
  void Sleep(std::chrono::nanoseconds span);
  bool Done() const { return Pending() == 0; }
  OperationRecord Here() const { return {operation_, {state_.step, state_.layer}}; }
  size_t Pending() const { return recvs_.size() + sends_.size(); }
  bool AwaitsArrival() const { return next_arrival_ != SteadyClock::time_point::max(); }
  Status CheckDeadline(SteadyClock::time_point now);
  void Withdraw();

  enum class Outcome { kNothing, kReceived, kDiverged };
  Outcome Receive(const RecvPart& part);
  void TakeArrivals(int peer);
  Message* Find(int peer);  // the message that pairs with a receive of the operation under way
  void Unlink(int peer, Message* message);
  bool Copy(Message* message, const RecvPart& part);

  Shared& shared_;
  const int rank_;
  RankState& state_;
  Watch watch_;
  std::vector<Inbox> inbox_;                        // [world]
  std::vector<std::unique_ptr<EagerSlots>> eager_;  // [world], made when first used
  std::vector<uint64_t> eager_sent_;                // [world]
  std::vector<std::unique_ptr<Message>> messages_;  // all this rank has made, by number
  std::vector<uint32_t> free_;                      // numbers of those not in use
  std::vector<int> receiver_;                       // [messages_] rank it was posted to
  EmulatedPort inside_, between_;                   // outgoing, with emulated links

  // Of the operation under way.
  Operation operation_;
  uint64_t pass_ = 0;
  std::vector<RecvPart> recvs_;  // pending
  std::vector<uint32_t> sends_;  // pending, by number
  std::vector<int> awaited_;     // scratch of CheckDeadline
  // The earliest of those that an emulated link carries and a receive waits for; max: none.
  SteadyClock::time_point next_arrival_ = SteadyClock::time_point::max();

  std::atomic<int64_t> wait_ns_{0};
};

}  // namespace sixfold::local
