#include "comm/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace sixfold {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What a test says of each rank.
class FakeView : public RankView {
 public:
  struct Entry {
    uint64_t progress = 1;
    RankSight report;
  };

  uint64_t ProgressOf(int rank) const override { return ranks.at(rank).progress; }
  int WaitsFor(int rank) const override { return ranks.at(rank).report.waits_for; }
  RankSight ReportOf(int rank) const override { return ranks.at(rank).report; }
  std::string ProcessOf(int rank) const override {
    const auto found = processes.find(rank);
    return found == processes.end() ? "" : found->second;
  }

  std::map<int, std::string> processes;

  std::map<int, Entry> ranks;
};

OperationRecord AllReduce(uint64_t sequence, int layer) {
  return {{CommOp::kAllReduce, 3, sequence, Axis::kTp}, {12, layer}};
}

TEST(Watch, CountsFromTheLastProgressOfThePeer) {
  FakeView view{};
  view.ranks[1] = {};
  Watch watch(0, 2, 10s);
  const SteadyClock::time_point start{};
  const std::vector<int> peers = {1};
  watch.BeginWait(start);
  EXPECT_EQ(watch.WorstOf(peers, start, view).span, 0s);
  EXPECT_EQ(watch.WorstOf(peers, start + 4s, view).span, 4s);
  ++view.ranks[1].progress;
  EXPECT_EQ(watch.WorstOf(peers, start + 6s, view).span, 0s);
  EXPECT_EQ(watch.WorstOf(peers, start + 9s, view).span, 3s);
  // A new wait starts anew: the peer may have waited for this rank in between.
  watch.BeginWait(start + 60s);
  EXPECT_EQ(watch.WorstOf(peers, start + 61s, view).span, 1s);
}

TEST(Watch, APeerThatWaitsIsAsAliveAsWhomItWaitsFor) {
  FakeView view;
  view.ranks[1].report.waits_for = 2;
  view.ranks[2].report.waits_for = 3;
  view.ranks[3] = {};
  Watch watch(0, 4, 10s);
  const SteadyClock::time_point start{};
  watch.BeginWait(start);
  const std::vector<int> peers = {1};
  watch.WorstOf(peers, start, view);
  ++view.ranks[3].progress;
  EXPECT_EQ(watch.WorstOf(peers, start + 8s, view).span, 0s);
  EXPECT_EQ(watch.WorstOf(peers, start + 13s, view).span, 5s);
}

TEST(Watch, TheWorstOfSeveralPeers) {
  FakeView view;
  view.ranks[1] = {};
  view.ranks[2] = {};
  Watch watch(0, 3, 10s);
  const SteadyClock::time_point start{};
  const std::vector<int> peers = {1, 2};
  watch.BeginWait(start);
  watch.WorstOf(peers, start, view);
  ++view.ranks[1].progress;
  const Watch::Stall stall = watch.WorstOf(peers, start + 5s, view);
  EXPECT_EQ(stall.peer, 2);
  EXPECT_EQ(stall.span, 5s);
}

TEST(Watch, NamesTheRankAtTheEndOfTheChain) {
  FakeView view;
  view.ranks[0].report.history = {AllReduce(17, 4)};
  view.ranks[3].report = {
      .place = {12, 4}, .waits_for = 5, .history = {AllReduce(16, 4), AllReduce(17, 4)}};
  view.ranks[5].report = {.place = {11, 4}, .history = {AllReduce(16, 4)}};
  Watch watch(0, 6, 10s);
  watch.BeginWait(SteadyClock::time_point{});
  const Status status = watch.Expired(AllReduce(17, 4), 3, SteadyClock::time_point{} + 10s, view);
  EXPECT_EQ(status.code(), StatusCode::kDeadline);
  EXPECT_EQ(status.message(),
            "rank 0 waited 10.0 s for rank 3 in all_reduce 17 of tp group 3 (layer 4, step 12): "
            "rank 3 waits for rank 5 in all_reduce 17 of tp group 3 (layer 4, step 12); rank 5 was "
            "last seen in layer 4, step 11 (last operation: all_reduce 16 of tp group 3 (layer 4, "
            "step 12)) and made no progress since");
}

TEST(Watch, TellsHostAndPidOfEachProcessOnce) {
  FakeView view;
  view.ranks[0].report.history = {AllReduce(17, 4)};
  view.ranks[1].report = {.place = {12, 4}, .waits_for = 2, .history = {AllReduce(17, 4)}};
  view.ranks[2].report = {.place = {11, 4}, .history = {AllReduce(16, 4)}};
  view.processes = {{0, "host a, pid 10"}, {1, "host a, pid 11"}, {2, "host b, pid 10"}};
  Watch watch(0, 3, 10s);
  watch.BeginWait(SteadyClock::time_point{});
  const auto said = [&] { return watch.Expired(AllReduce(17, 4), 1, SteadyClock::time_point{} + 10s, view).message(); };
  EXPECT_EQ(said(),
            "rank 0 (host a, pid 10) waited 10.0 s for rank 1 (host a, pid 11) in all_reduce 17 of tp group 3 (layer 4, step 12): "
            "rank 1 waits for rank 2 (host b, pid 10) in all_reduce 17 of tp group 3 (layer 4, step 12); rank 2 was last seen in "
            "layer 4, step 11 (last operation: all_reduce 16 of tp group 3 (layer 4, step 12)) and made no progress since");
  for (auto& [rank, process] : view.processes) process = "host a, pid 10";
  EXPECT_EQ(said(),
            "rank 0 waited 10.0 s for rank 1 in all_reduce 17 of tp group 3 (layer 4, step 12): rank 1 waits for rank 2 in "
            "all_reduce 17 of tp group 3 (layer 4, step 12); rank 2 was last seen in layer 4, step 11 (last operation: all_reduce "
            "16 of tp group 3 (layer 4, step 12)) and made no progress since; ranks are threads of one process (host a, pid 10)");
}

TEST(Watch, RanksThatWaitForEachOtherShowWhereTheyParted) {
  FakeView view;
  view.ranks[0].report = {.waits_for = 1,
                          .history = {AllReduce(15, 3), AllReduce(16, 4), AllReduce(17, 5)}};
  view.ranks[1].report = {.waits_for = 0,
                          .history = {AllReduce(15, 3), AllReduce(16, 5), AllReduce(17, 6)}};
  Watch watch(0, 2, 10s);
  watch.BeginWait(SteadyClock::time_point{});
  const Status status = watch.Expired(AllReduce(17, 5), 1, SteadyClock::time_point{} + 10s, view);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("rank 1 waits for rank 0 in all_reduce 17"),
                    HasSubstr("first difference: rank 0 entered all_reduce 16 of tp group 3 (layer "
                              "4, step 12), rank 1 entered all_reduce 16 of tp group 3 (layer 5, "
                              "step 12)"),
                    Not(HasSubstr("last seen"))));
}

TEST(PackedRecord, KeepsWhatItHolds) {
  for (const int layer : {-1, 0, 79}) {
    const OperationRecord record = {{CommOp::kGather, 123456, uint64_t{1} << 50, Axis::kEdp},
                                    {int64_t{1} << 40, layer}};
    EXPECT_EQ(Describe(Unpack(Pack(record))), Describe(record));
  }
}

}  // namespace
}  // namespace sixfold
