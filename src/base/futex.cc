#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace sixfold {
namespace {

// The kernel's view of an atomic word.
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void Wake(std::atomic<uint32_t>& word, int sleepers) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, sleepers, nullptr,
          nullptr, 0);
}

}  // namespace

void FutexWait(std::atomic<uint32_t>& word, uint32_t value,
               std::optional<std::chrono::nanoseconds> span) {
  timespec time{};
  if (span) {
    time.tv_sec = static_cast<time_t>(span->count() / 1'000'000'000);
    time.tv_nsec = static_cast<long>(span->count() % 1'000'000'000);
  }
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value,
          span ? &time : nullptr, nullptr, 0);
}

void FutexWakeOne(std::atomic<uint32_t>& word) { Wake(word, 1); }

void FutexWakeAll(std::atomic<uint32_t>& word) { Wake(word, INT_MAX); }

}  // namespace sixfold
