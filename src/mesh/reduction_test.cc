#include "mesh/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sixfold {
namespace {

using ::testing::ElementsAre;

TEST(Leaves, OneHeadALeafBelowSixteenHeads) {
  EXPECT_THAT(OutputProjectionLeaves(9, 64, 8, 32).begin,
              ElementsAre(0, 64, 128, 192, 256, 320, 384, 448, 512, 576));
}

TEST(Leaves, ManyHeadsAreDealtInWholeHeads) {
  EXPECT_THAT(OutputProjectionLeaves(16, 4, 8, 1).begin, ElementsAre(0, 8, 16, 24, 32, 40, 48, 56, 64));
  EXPECT_THAT(OutputProjectionLeaves(20, 4, 8, 1).begin, ElementsAre(0, 8, 20, 28, 40, 48, 60, 68, 80));
}

TEST(Leaves, HeadsJoinUntilABlockEndsWithThem) {
  EXPECT_THAT(OutputProjectionLeaves(8, 80, 8, 32).begin, ElementsAre(0, 160, 320, 480, 640));
  EXPECT_THAT(OutputProjectionLeaves(3, 16, 8, 32).begin, ElementsAre(0, 32, 48));
}

TEST(Leaves, DownProjectionTakesWholeUnitsAndKeepsTheTail) {
  EXPECT_THAT(DownProjectionLeaves(1536, 8, 32).begin,
              ElementsAre(0, 192, 384, 576, 768, 960, 1152, 1344, 1536));
  EXPECT_THAT(DownProjectionLeaves(148, 8, 1).begin, ElementsAre(0, 32, 64, 96, 128, 148));
  EXPECT_THAT(DownProjectionLeaves(512, 8, 256).begin, ElementsAre(0, 256, 512));
  EXPECT_THAT(DownProjectionLeaves(20, 8, 1).begin, ElementsAre(0, 20));
}

}  // namespace
}  // namespace sixfold
