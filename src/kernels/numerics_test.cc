#include "kernels/numerics.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <thread>

namespace sixfold {
namespace {

TEST(Isa, NamesGoBothWays) {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    EXPECT_EQ(IsaFromName(NameOf(isa)), isa);
  }
  EXPECT_FALSE(IsaFromName("auto").has_value());
  EXPECT_FALSE(IsaFromName("").has_value());
}

TEST(Isa, DetectionAgreesWithItselfAndWithTheCompilersRuntime) {
  const Isa isa = DetectIsa();
  EXPECT_EQ(DetectIsa(), isa);
  EXPECT_EQ(isa >= Isa::kAvx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(isa >= Isa::kAvx512,
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"));
}

TEST(FloatMode, FlushesDenormalsInTheThreadThatAsks) {
  std::thread([] {
    _mm_setcsr(0x1f80);  // the processor's default: a thread starts with its maker's mode
    volatile float small = 1e-20f;
    volatile float denormal = 1e-40f;
    EXPECT_NE(small * small, 0.0f);
    SetFloatMode();
    EXPECT_EQ(small * small, 0.0f);
    EXPECT_EQ(denormal * 1e30f, 0.0f);
  }).join();
}

TEST(Leaves, WholeIsOneLeaf) {
  const Leaves leaves = Leaves::Whole(576);
  EXPECT_EQ(leaves.count(), 1);
  EXPECT_EQ(leaves.k(), 576);
}

}  // namespace
}  // namespace sixfold
