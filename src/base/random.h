// Counter-based random numbers: a value is a pure function of its key, so no order of calls can change it.
// Philox4x32-10 after Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
#pragma once

#include <array>
#include <cstdint>

namespace sixfold {

// What a number is drawn for; two purposes at one position never share bits.
enum class RandomPurpose : uint32_t { kSample = 0, kSeed = 1, kDraft = 2, kAccept = 3, kTest = 100 };

struct RandomKey {
  uint64_t seed = 0;
  uint32_t choice = 0;    // index of the answer when a request asks for n of them
  uint32_t position = 0;  // absolute position of the token that the number decides
  RandomPurpose purpose = RandomPurpose::kSample;
};

std::array<uint32_t, 4> RandomBits(const RandomKey& key);
// In [0, 1), a multiple of 2^-53.
double RandomUniform(const RandomKey& key);

}  // namespace sixfold
