#include "comm/local/shared.h"

#include "base/check.h"
#include "base/machine.h"

namespace sixfold::local {

Shared::Shared(int ranks, const LocalWorldOptions& options)
    : ranks_(ranks),
      timeout_(options.timeout),
      may_spin_(ranks * options.threads_per_rank <=
                (options.cores > 0 ? options.cores : UsableCores())),
      emulated_(options.emulated_links),
      channels_(std::make_unique<Channel[]>(static_cast<size_t>(ranks) * ranks)),
      bells_(std::make_unique<Bell[]>(ranks)),
      states_(std::make_unique<RankState[]>(ranks)) {
  SF_CHECK_GT(ranks, 0);
  SF_CHECK_GT(options.timeout.count(), 0);
  if (emulated_) SF_CHECK_EQ(emulated_->ranks(), ranks);
}

void Shared::Fail(int rank, const Status& why) {
  SF_CHECK(!why.ok());
  {
    const std::lock_guard lock(failure_mutex_);
    if (failed_rank_ >= 0) return;
    failed_rank_ = rank;
    failure_ = why;
    // Under the lock: a rank that fails at the same moment must find the instance failed when its own call returns.
    failed_.store(true, std::memory_order_seq_cst);
  }
  for (int r = 0; r < ranks_; ++r) {
    bells_[r].rings.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeOne(bells_[r].rings);
  }
}

Status Shared::FailureFor(int rank) const {
  if (!failed()) return OkStatus();
  const std::lock_guard lock(failure_mutex_);
  if (rank == failed_rank_) return failure_;
  return {StatusCode::kUnavailable, failure_.message()};
}

}  // namespace sixfold::local
