#include "base/fnv.h"

#include <gtest/gtest.h>

namespace sixfold {
namespace {

uint64_t HashOf(std::string_view text) {
  Fnv1a hash;
  hash.Add(text);
  return hash.value();
}

// The published vectors of the 64-bit FNV-1a.
TEST(Fnv1a, MeetsPublishedVectors) {
  EXPECT_EQ(HashOf(""), 0xcbf29ce484222325u);
  EXPECT_EQ(HashOf("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(HashOf("foobar"), 0x85944171f73967e8u);
}

TEST(Fnv1a, NumbersAreTheirEightBytes) {
  Fnv1a number;
  number.Add(int64_t{0x0102});
  EXPECT_EQ(number.value(), HashOf(std::string_view("\x02\x01\0\0\0\0\0\0", 8)));
}

}  // namespace
}  // namespace sixfold
