#include "gateway/testing/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace sixfold::gateway {
namespace {

// Constant-initialised: allocations come before any constructor of this file.
std::atomic<int64_t> live_bytes{0}, peak_bytes{0}, countdown{-1};
thread_local bool marked = false;

bool ShouldFail() {
  return marked && countdown.load(std::memory_order_relaxed) >= 0 && countdown.fetch_sub(1) == 0;
}

void* Counted(void* memory) {
  if (memory == nullptr) return nullptr;
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  const int64_t live = live_bytes.fetch_add(size, std::memory_order_relaxed) + size;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void* NewOrThrow(size_t size) {
  void* memory = ShouldFail() ? nullptr : Counted(std::malloc(size == 0 ? 1 : size));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

int64_t LiveBytes() { return live_bytes.load(); }
int64_t PeakBytes() { return peak_bytes.load(); }
void ResetPeak() { peak_bytes.store(live_bytes.load()); }
void MarkThread() { marked = true; }
void FailAllocation(int64_t skipped) { countdown.store(skipped); }
bool StopFailing() { return countdown.exchange(-1) < 0; }

}  // namespace sixfold::gateway

void* operator new(size_t size) { return sixfold::gateway::NewOrThrow(size); }
void* operator new[](size_t size) { return sixfold::gateway::NewOrThrow(size); }
void operator delete(void* memory) noexcept { sixfold::gateway::Free(memory); }
void operator delete[](void* memory) noexcept { sixfold::gateway::Free(memory); }
void operator delete(void* memory, size_t) noexcept { sixfold::gateway::Free(memory); }
void operator delete[](void* memory, size_t) noexcept { sixfold::gateway::Free(memory); }

extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  if (sixfold::gateway::ShouldFail()) return nullptr;
  void* memory = nullptr;
  return posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, size) == 0
             ? memory
             : nullptr;
}
