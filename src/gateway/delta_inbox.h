// Carries Deltas from the backend's threads to the I/O thread: however many arrive together, one
// wake-up.
#pragma once

#include <cstdint>
#include <exception>
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

  // `wake` makes the I/O thread call Take; it is called with the lock held. Where it throws, the
  // next Push calls it again.
  explicit DeltaInbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // False: there was no memory for it, and its generation lacks it now. The backend's thread, which
  // serves all generations, is never left by an exception.
  [[nodiscard]] bool Push(Item item) noexcept {
    const std::lock_guard lock(mutex_);
    if (!wake_) return true;
    bool kept = true;
    try {
      items_.push_back(std::move(item));
    } catch (const std::exception&) {
      kept = false;
    }
    try {
      if (!woken_) wake_();
      woken_ = true;
    } catch (const std::exception&) {
    }
    return kept;
  }
  std::vector<Item> Take() {
    const std::lock_guard lock(mutex_);
    woken_ = false;
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
  bool woken_ = false;  // since the last Take
  std::vector<Item> items_;
};

}  // namespace sixfold::gateway
