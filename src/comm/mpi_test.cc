// What of mpi/ can be seen without a launcher; the rest runs under mpirun (testing/mpi_ranks.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "comm/mpi/mpi_world.h"
#include "comm/mpi/tags.h"

namespace sixfold {
namespace {

using ::testing::HasSubstr;

TEST(Mpi, NamesItsLibraryInAFewWords) {
  const std::string version = MpiLibraryVersion();
  EXPECT_EQ(version.empty(), !BuiltWithMpi());
  if (!BuiltWithMpi()) return;
  EXPECT_THAT(version, ::testing::MatchesRegex("(Open MPI v|MPICH Version: )[0-9.a-z]+"));
}

TEST(Tags, NearbyOperationsDiffer) {
  for (const int tag_max : {32767, 0x0fffffff, 0x7fffffff}) {
    const mpi::Tags tags(tag_max);
    std::map<int, int> seen;
    for (int op = 0; op < 8; ++op) {
      for (int group = 0; group < 16; ++group) {
        for (uint64_t sequence = 0; sequence < 60; ++sequence) {
          const Operation operation = {static_cast<CommOp>(op), group, (1 << 30) + sequence};
          const int tag = tags.Of(operation);
          EXPECT_GE(tag, 0);
          EXPECT_LE(tag, tag_max);
          EXPECT_EQ(++seen[tag], 1);
        }
      }
    }
  }
}

TEST(Tags, AreReadWithTheHelpOfWhatIsNear) {
  const mpi::Tags tags(0x0fffffff);
  const Operation near = {CommOp::kAllReduce, 70000, (uint64_t{1} << 40) + 17, Axis::kCp};
  const Operation there = {CommOp::kBarrier, 70000, (uint64_t{1} << 40) + 12, Axis::kCp};
  const Operation read = tags.Read(tags.Of(there), near);
  EXPECT_EQ(read.op, there.op);
  EXPECT_EQ(read.group, there.group);
  EXPECT_EQ(read.sequence, there.sequence);
  EXPECT_EQ(read.axis, there.axis);
}

TEST(MpiWorld, WithoutALauncherThereIsNone) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"})
    unsetenv(name);
  EXPECT_FALSE(LaunchedByMpi());
  const auto world = MpiWorld::Start();
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(world.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(world.status().message(),
              HasSubstr(BuiltWithMpi() ? "mpirun" : "apt-get install libopenmpi-dev"));
}

}  // namespace
}  // namespace sixfold
