// What one member of a group sends to or gets from each of the others, one after the other in one buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sixfold {

template <typename T>
struct Slices {
  std::vector<int64_t> begin = {0};  // [members + 1]
  std::vector<std::span<T>> of;      // [members]

  void Append(int64_t size) { begin.push_back(begin.back() + size); }
  void Point(T* base) {
    of.clear();
    for (size_t i = 0; i + 1 < begin.size(); ++i) {
      of.push_back(begin[i] == begin[i + 1] ? std::span<T>() : std::span<T>(base + begin[i], begin[i + 1] - begin[i]));
    }
  }
};

inline std::vector<std::span<const std::byte>> AsBytes(const std::vector<std::span<float>>& slices) {
  std::vector<std::span<const std::byte>> bytes;
  for (const std::span<float>& s : slices) bytes.push_back(std::as_bytes(s));
  return bytes;
}

inline std::vector<std::span<std::byte>> AsWritableBytes(const std::vector<std::span<float>>& slices) {
  std::vector<std::span<std::byte>> bytes;
  for (const std::span<float>& s : slices) bytes.push_back(std::as_writable_bytes(s));
  return bytes;
}

}  // namespace sixfold
