// Sleeping on a 32-bit word. std::atomic::wait yields the processor several times before it sleeps,
// and on a processor that others use too each yield costs a whole time slice.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace sixfold {

// Returns at once when the word is not `value`, else after a wake-up, after `span`, or for no
// reason.
void FutexWait(std::atomic<uint32_t>& word, uint32_t value,
               std::optional<std::chrono::nanoseconds> span = {});
void FutexWakeOne(std::atomic<uint32_t>& word);
void FutexWakeAll(std::atomic<uint32_t>& word);

// One turn of a loop that polls memory.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace sixfold
