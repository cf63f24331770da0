#include "tensor/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sixfold {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// MemAvailable in bytes, or 0 when the kernel does not say.
size_t AvailableMemory() {
  const long pages = sysconf(_SC_AVPHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
}

size_t TotalMemory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
}

std::string MiB(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

}  // namespace

size_t Buffer::MappedBytes(size_t bytes) {
  if (bytes == 0) return 0;
  const size_t unit = bytes >= kHugePage ? kHugePage : 4096;
  return (bytes + kSlackBytes + unit - 1) / unit * unit;
}

Result<Buffer> Buffer::Allocate(size_t bytes, const char* purpose) {
  Buffer b;
  if (bytes == 0) return b;
  // Anonymous memory is promised lazily: without this check an impossible size ends in the kernel's OOM killer, not in
  // an error that a user can read.
  const size_t total = TotalMemory();
  if (total != 0 && bytes > total) {
    return OutOfMemory(std::string(purpose) + " needs " + MiB(bytes) + "; this machine has " + MiB(total));
  }
  const bool huge = bytes >= kHugePage;
  const size_t mapped = MappedBytes(bytes);
  // Over-map by one unit and trim, so that the start lies on a huge page.
  const size_t reserve = huge ? mapped + kHugePage : mapped;
  void* p = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    return OutOfMemory(std::string(purpose) + " needs " + MiB(bytes) + ": " + std::strerror(errno) + " (" +
                       MiB(AvailableMemory()) + " available)");
  }
  auto start = reinterpret_cast<uintptr_t>(p);
  if (huge) {
    const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
    if (aligned > start) munmap(p, aligned - start);
    const uintptr_t end = start + reserve;
    if (end > aligned + mapped) munmap(reinterpret_cast<void*>(aligned + mapped), end - aligned - mapped);
    start = aligned;
    madvise(reinterpret_cast<void*>(start), mapped, MADV_HUGEPAGE);
  }
  b.data_ = reinterpret_cast<std::byte*>(start);
  b.size_ = bytes;
  b.mapped_ = mapped;
  return b;
}

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

}  // namespace sixfold
