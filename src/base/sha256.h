// SHA-256 (FIPS 180-4) of libcrypto: for what must not be taken for another thing even when
// somebody tries.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sixfold {

using Digest256 = std::array<std::byte, 32>;

// Of bytes that come in pieces. Thread rule: one thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();

  Sha256& Add(std::span<const std::byte> bytes);
  Sha256& Add(std::string_view bytes) { return Add(std::as_bytes(std::span(bytes))); }
  // The eight bytes of a number, lowest first.
  Sha256& Add(uint64_t number);
  // The length first, so that neighbouring texts cannot trade bytes.
  Sha256& AddSized(std::span<const std::byte> bytes) {
    return Add(static_cast<uint64_t>(bytes.size())).Add(bytes);
  }
  Sha256& AddSized(std::string_view bytes) { return AddSized(std::as_bytes(std::span(bytes))); }
  // Of everything since construction or the last Finish.
  Digest256 Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Two lower-case digits a byte.
std::string HexText(std::span<const std::byte> bytes);

}  // namespace sixfold
