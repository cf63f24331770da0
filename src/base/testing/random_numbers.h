// Whole numbers for tests, the same in every run.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace sixfold {

class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : seed_(seed) {}
  // In [low, high].
  int64_t Next(int64_t low, int64_t high) {
    const double u = RandomUniform({.seed = seed_, .position = next_++, .purpose = RandomPurpose::kTest});
    return low + static_cast<int64_t>(u * static_cast<double>(high - low + 1));
  }

 private:
  uint64_t seed_;
  uint32_t next_ = 0;
};

}  // namespace sixfold
