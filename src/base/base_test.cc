#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/random.h"
#include "base/status.h"

namespace sixfold {
namespace {

TEST(Random, MatchesPublishedPhiloxVectors) {
  // Random123's known answers for philox4x32-10 with an all-zero counter and key: our key layout puts zeros there.
  const auto bits = RandomBits({.seed = 0, .choice = 0, .position = 0, .purpose = RandomPurpose::kSample});
  EXPECT_EQ(bits[0], 0x6627e8d5u);
  EXPECT_EQ(bits[1], 0xe169c58du);
  EXPECT_EQ(bits[2], 0xbc57ac4cu);
  EXPECT_EQ(bits[3], 0x9b00dbd8u);
}

TEST(Random, UniformsHaveAll53Bits) {
  // 0x6627e8d5e169c58d of the vector above, without its lowest 11 bits, as a fraction.
  EXPECT_EQ(RandomUniform({.seed = 0, .choice = 0, .position = 0, .purpose = RandomPurpose::kSample}), static_cast<double>(0x6627e8d5e169c58d >> 11) / 9007199254740992.0);
  int odd = 0;  // last bits of 53
  for (uint32_t i = 0; i < 64; ++i) {
    const double scaled = RandomUniform({.seed = 9, .position = i}) * 0x1p53;
    EXPECT_EQ(scaled, std::floor(scaled));
    odd += static_cast<int>(static_cast<int64_t>(scaled) & 1);
  }
  EXPECT_GT(odd, 16);
  EXPECT_LT(odd, 48);
}

TEST(Random, EveryPartOfTheKeyMatters) {
  std::set<double> seen;
  for (uint64_t seed : {1, 2})
    for (uint32_t choice : {0, 1})
      for (uint32_t position : {0, 1, 2})
        for (auto purpose : {RandomPurpose::kSample, RandomPurpose::kDraft}) {
          const double u = RandomUniform({seed, choice, position, purpose});
          EXPECT_GE(u, 0.0);
          EXPECT_LT(u, 1.0);
          seen.insert(u);
        }
  EXPECT_EQ(seen.size(), 24u);
}

TEST(Status, ContextStandsBeforeTheMessage) {
  const Status s = InvalidFile("tensor x is truncated").WithContext("a.gguf");
  EXPECT_EQ(s.message(), "a.gguf: tensor x is truncated");
  EXPECT_EQ(s.code(), StatusCode::kInvalidFile);
  EXPECT_TRUE(OkStatus().WithContext("x").ok());
}

Result<int> Half(int x) {
  if (x % 2) return InvalidArgument("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  SF_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

TEST(Result, AssignOrReturnPassesTheFailureOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

}  // namespace
}  // namespace sixfold
