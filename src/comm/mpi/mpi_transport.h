// One process's Transport over MPI. Internal to mpi/.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/mpi/bulletin.h"
#include "comm/mpi/mpi_world.h"
#include "comm/mpi/tags.h"
#include "comm/mpi/wires.h"
#include "comm/transport.h"
#include "comm/watch.h"

namespace sixfold::mpi {

// Thread rule: Transport's. All calls to MPI hold mutex_, so that Abort may come from any thread.
// `wires` outlives it.
class MpiTransport : public Transport {
 public:
  MpiTransport(Wires& wires, const MpiWorldOptions& options);
  ~MpiTransport() override;

  int rank() const override { return wires_.rank(); }
  int world() const override { return wires_.world(); }
  Status Exchange(const Operation& operation, std::span<const SendPart> sends,
                  std::span<const RecvPart> recvs) override;
  Result<SendTicket> StartSend(const Operation& operation, const SendPart& send) override;
  Status FinishSend(SendTicket ticket) override;
  void Progress(const Place& place) override;
  void Abort(const Status& why) override;
  Status Failed() const override;
  std::chrono::nanoseconds wait_time() const override {
    return std::chrono::nanoseconds(wait_ns_.load(std::memory_order_relaxed));
  }

  // Keeps the wires moving for `span`, so that last words get out.
  void Linger(std::chrono::milliseconds span);

 private:
  Status Complete(RequestSet& set, const Operation& operation);
  Status WaitUntilComplete(RequestSet& set, const Operation& operation);
  Status Tick(RequestSet& set, const Operation& operation, SteadyClock::time_point now);
  Status LookForDivergence(RequestSet& set, const Operation& operation,
                           SteadyClock::time_point now);
  Status CheckSizes(RequestSet& set, const Operation& operation);
  void Rest(SteadyClock::duration waited) const;
  OperationRecord Here(const Operation& operation) const { return {operation, bulletin_.place()}; }
  // The failure is this rank's own: the others hear of it.
  Status Fail(const Status& why);
  Status FailLocked(const Status& why);
  void TakeNews();  // reports and failures of others

  Wires& wires_;
  const bool may_spin_;
  const Tags tags_;
  Watch watch_;
  mutable std::mutex mutex_;
  Bulletin bulletin_;
  RequestSet exchange_;
  std::vector<std::unique_ptr<RequestSet>> late_;  // by ticket - 1
  std::vector<Operation> late_operations_;         // [late_]
  std::vector<size_t> free_late_;
  size_t late_under_way_ = 0;
  std::vector<int> awaited_;                            // scratch
  std::optional<SteadyClock::time_point> diverged_at_;  // in the wait under way

  std::atomic<bool> failed_{false};
  Status failure_;  // under mutex_
  SteadyClock::time_point next_beat_{}, next_news_{};
  std::atomic<int64_t> wait_ns_{0};
};

}  // namespace sixfold::mpi
