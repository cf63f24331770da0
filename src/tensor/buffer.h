// Owning, 64-byte aligned memory; large buffers ask for 2 MiB pages (streaming weights from 4 KiB pages runs at half
// speed on the machines measured).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"

namespace sixfold {

// Movable owner of zero-filled bytes. kSlackBytes readable bytes follow the last one, so that a vector load may begin at any
// element: without them a load past the last panel of packed weights ends at an unmapped page.
// Thread rule: none of its own; contents follow the owner's rule.
class Buffer {
 public:
  static constexpr size_t kSlackBytes = 64;

  Buffer() = default;
  // kOutOfMemory when the machine does not give `bytes`; the message names what the memory was for.
  static Result<Buffer> Allocate(size_t bytes, const char* purpose);
  // What Allocate takes from the machine for `bytes`: whole pages.
  static size_t MappedBytes(size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T> T* as() { return reinterpret_cast<T*>(data_); }
  template <typename T> const T* as() const { return reinterpret_cast<const T*>(data_); }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
};

}  // namespace sixfold
