// Memory that is held for clients, counted over the whole server.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace sixfold::gateway {

// Thread rule: any thread; a lease by one thread at a time. Leases may outlive the budget.
class ByteBudget {
  struct Count {
    explicit Count(int64_t max) : bytes_max(max) {}
    const int64_t bytes_max;
    std::atomic<int64_t> bytes{0};
  };

 public:
  explicit ByteBudget(int64_t bytes_max) : count_(std::make_shared<Count>(bytes_max)) {}

  // A part of the budget, given back by its end. It goes where the memory goes that it stands for.
  class Lease {
   public:
    Lease() = default;  // of no budget: everything fits
    Lease(Lease&& other) noexcept
        : count_(std::move(other.count_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(count_, other.count_);
      std::swap(bytes_, other.bytes_);
      other.Release();
      return *this;
    }
    ~Lease() { Release(); }

    // Whether all leases together are within the limit; they count so many bytes in any case.
    bool Resize(int64_t bytes) {
      if (!count_) return true;
      const int64_t change = bytes - std::exchange(bytes_, bytes);
      return count_->bytes.fetch_add(change) + change <= count_->bytes_max || change <= 0;
    }
    void Release() { Resize(0); }
    int64_t bytes() const { return bytes_; }

   private:
    friend class ByteBudget;
    explicit Lease(std::shared_ptr<Count> count) : count_(std::move(count)) {}

    std::shared_ptr<Count> count_;
    int64_t bytes_ = 0;
  };

  Lease NewLease() const { return Lease(count_); }
  int64_t bytes() const { return count_->bytes.load(); }
  int64_t bytes_max() const { return count_->bytes_max; }

 private:
  const std::shared_ptr<Count> count_;
};

}  // namespace sixfold::gateway
