// Carries Deltas from the backend's threads to the I/O thread: however many arrive together, one
// wake-up.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace sixfold::gateway {

// Thread rule: any thread. Sinks hold it by shared_ptr: they may be called after the server is
// gone.
class DeltaInbox {
 public:
  struct Item {
    uint64_t generation = 0;
    int prompt = 0;
    Delta delta;
  };

  // `wake` makes the I/O thread call Take; it is called with the lock held.
  explicit DeltaInbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void Push(Item item) {
    const std::lock_guard lock(mutex_);
    if (!wake_) return;
    items_.push_back(std::move(item));
    if (items_.size() == 1) wake_();
  }
  std::vector<Item> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }
  // What comes from now on is dropped.
  void Close() {
    const std::lock_guard lock(mutex_);
    wake_ = nullptr;
    items_.clear();
  }

 private:
  std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<Item> items_;
};

}  // namespace sixfold::gateway
