// FNV-1a, 64 bits: for telling small things apart, never against an adversary. Weights are hashed
// by SHA-256 (sha256.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace sixfold {

class Fnv1a {
 public:
  void Add(std::string_view bytes) {
    for (const char c : bytes) Step(static_cast<unsigned char>(c));
  }
  // The eight bytes of a number, lowest first.
  void Add(int64_t value) {
    for (int byte = 0; byte < 8; ++byte) Step(static_cast<uint64_t>(value) >> (8 * byte) & 0xff);
  }
  uint64_t value() const { return value_; }

 private:
  void Step(uint64_t byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }

  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace sixfold
