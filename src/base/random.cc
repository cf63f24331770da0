#include "base/random.h"

namespace sixfold {

std::array<uint32_t, 4> RandomBits(const RandomKey& key) {
  std::array<uint32_t, 4> c = {key.position, key.choice, static_cast<uint32_t>(key.purpose), 0};
  uint32_t k0 = static_cast<uint32_t>(key.seed);
  uint32_t k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

double RandomUniform(const RandomKey& key) {
  const auto bits = RandomBits(key);
  const uint64_t wide = (uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(wide >> 11) * 0x1.0p-53;
}

}  // namespace sixfold
