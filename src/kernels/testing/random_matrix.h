// Random stored matrices of every type that the kernels read, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/matrix_view.h"

namespace sixfold::testing {

// Small generator with its state in view (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Bits();
  float Uniform(float low, float high);
  float Normal();  // about: a sum of four uniforms, |x| < 3.5

 private:
  uint64_t state_;
};

// Owns what the view looks at. Codes reach every value; scales are about 0.01, some negative, zero
// or subnormal halves.
struct RandomMatrix {
  std::vector<std::byte> bytes;
  std::vector<std::byte> scale_bytes;
  MatrixView view;

  RandomMatrix(DType dtype, int64_t rows, int64_t cols, uint64_t seed);
  RandomMatrix(RandomMatrix&&) = default;
};

}  // namespace sixfold::testing
