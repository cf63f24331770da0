// The C ABI of text-rs in C++ values. Only .cc files of this folder include it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "sixfold_text.h"

namespace sixfold {

inline sixfold_slice SliceOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

inline std::string_view ViewOf(sixfold_slice slice) { return {reinterpret_cast<const char*>(slice.data), slice.size}; }

// Memory of the Rust side, given back at the end of its scope.
class RustBuffer {
 public:
  RustBuffer() = default;
  ~RustBuffer() {
    if (buffer_.data != nullptr) sixfold_buffer_free(&buffer_);
  }
  RustBuffer(const RustBuffer&) = delete;
  RustBuffer& operator=(const RustBuffer&) = delete;

  sixfold_buffer* get() { return &buffer_; }
  std::string_view view() const { return {reinterpret_cast<const char*>(buffer_.data), buffer_.size}; }

 private:
  sixfold_buffer buffer_ = {nullptr, 0, 0};
};

// The failure of a call that returned `code`: `invalid` where the input is to blame.
inline Status StatusOf(int code, std::string_view message, StatusCode invalid) {
  if (code == SIXFOLD_TEXT_INTERNAL) return Internal("text: " + std::string(message));
  return {invalid, std::string(message)};
}

}  // namespace sixfold
