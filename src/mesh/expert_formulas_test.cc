#include "mesh/expert_formulas.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <set>

#include "mesh/axes.h"

namespace sixfold::formulas {
namespace {

constexpr double kMiB = 1 << 20;

// 000 §3.4: 4096 tokens, H = 8192, BF16, 8 ranks.
MoeTraffic SeedLayer(int64_t top_k) {
  const int64_t row = RowBytes(8192, 2);
  return {.ranks = 8,
          .tokens = 4096,
          .top_k = top_k,
          .dispatch_row_bytes = row,
          .combine_row_bytes = row};
}

TEST(Dispatch, EightRanksTop2OfTheSeed) {
  const MoeTraffic layer = SeedLayer(2);
  EXPECT_EQ(DispatchLogicalBytes(layer), 128 << 20);
  EXPECT_EQ(DispatchLogicalBytes(layer) + CombineLogicalBytes(layer), 256 << 20);
  EXPECT_DOUBLE_EQ(UniformRemoteShare(8), 7.0 / 8);
  EXPECT_DOUBLE_EQ(DispatchRemoteBytes(layer, UniformRemoteShare(8)), 112 * kMiB);
  EXPECT_DOUBLE_EQ(RemoteBytes(layer, UniformRemoteShare(8)), 224 * kMiB);
  EXPECT_DOUBLE_EQ(RankBytes(layer), 28 * kMiB);
  EXPECT_DOUBLE_EQ(PairBytes(layer), 2 * kMiB);
}

TEST(Dispatch, Top16IsEightTimesAsMuch) {
  const MoeTraffic layer = SeedLayer(16);
  EXPECT_DOUBLE_EQ(RemoteBytes(layer, UniformRemoteShare(8)), 1.75 * 1024 * kMiB);
  EXPECT_EQ(DispatchLogicalBytes(layer), int64_t{1} << 30);
  EXPECT_DOUBLE_EQ(RankBytes(layer), 8 * 28 * kMiB);
  EXPECT_DOUBLE_EQ(PairBytes(layer), 16 * kMiB);
}

TEST(Dispatch, Top16WithOneCopyARankIsFarLess) {
  // 16 of 896 over 8 ranks reach 6.19 remote ranks, not 14: 0.774 GiB.
  const double reached = ExpectedDistinctGroups(896, 8, 16) * UniformRemoteShare(8);
  EXPECT_NEAR(reached, 6.19, 0.005);
  EXPECT_NEAR(2 * 4096 * 16384 * reached / (1024 * kMiB), 0.774, 0.0005);
}

TEST(Dispatch, ElementSizesOfEachPhase) {
  // DeepSeek-V3, a token and layer: FP8 out and BF16 back, 8 assignments.
  const MoeTraffic layer{.ranks = 256,
                         .tokens = 1,
                         .top_k = 8,
                         .dispatch_row_bytes = RowBytes(7168, 1),
                         .combine_row_bytes = RowBytes(7168, 2)};
  EXPECT_EQ(DispatchLogicalBytes(layer), 57344);
  EXPECT_EQ(CombineLogicalBytes(layer), 114688);
  EXPECT_EQ(Fp8RowBytes(7168), 7168 + 56 * 4);
  EXPECT_DOUBLE_EQ(static_cast<double>(Fp8RowBytes(7168)) / RowBytes(7168, 2), 0.515625);
  EXPECT_EQ(Fp8RowBytes(1), 5);
}

TEST(Dispatch, TokensOfAnExpertInKimiK3) {
  // 000 §4.1: 16·T/896 = T/56.
  EXPECT_DOUBLE_EQ(TokensPerExpert(5600, 16, 896), 100);
}

TEST(CriticalPathOfDispatch, AHotRankRulesWhereTotalsAreEqual) {
  // 12 rows each way, evenly and all to rank 2; a row of 1000 bytes takes 1 µs at 1 GB/s.
  const TrafficMatrix even{3, {9, 2, 2, 2, 9, 2, 2, 2, 9}};
  const TrafficMatrix hot{3, {9, 0, 4, 0, 9, 4, 4, 0, 9}};
  const RankBandwidth bandwidth[] = {{1, 1}};
  EXPECT_EQ(BytesOfRanks(even, 1000)[1], (SendReceive{4000, 4000}));
  EXPECT_EQ(BytesOfRanks(hot, 1000)[2], (SendReceive{4000, 8000}));
  EXPECT_DOUBLE_EQ(DispatchCriticalPath(even, 1000, bandwidth, 5).us, 9);
  const CriticalPath path = DispatchCriticalPath(hot, 1000, bandwidth, 5);
  EXPECT_DOUBLE_EQ(path.us, 13);
  EXPECT_EQ(path.rank, 2);
  EXPECT_EQ(path.direction, CriticalPath::Direction::kReceive);
  // A slow sender can outweigh a hot receiver.
  const RankBandwidth slow[] = {{0.25, 1}, {1, 1}, {1, 1}};
  const CriticalPath sender = DispatchCriticalPath(hot, 1000, slow, 0);
  EXPECT_EQ(sender.rank, 0);
  EXPECT_EQ(sender.direction, CriticalPath::Direction::kSend);
  EXPECT_DOUBLE_EQ(sender.us, 16);
}

TEST(CriticalPathOfDispatch, UniformRoutingMatchesTheFormulaOfARank) {
  const MoeTraffic layer = SeedLayer(2);
  TrafficMatrix matrix{8, std::vector<int64_t>(64, 4096 * 2 / 64)};
  for (const SendReceive& rank : BytesOfRanks(matrix, layer.dispatch_row_bytes)) {
    EXPECT_DOUBLE_EQ(static_cast<double>(rank.send), RankBytes(layer) / 2);
    EXPECT_EQ(rank.send, rank.receive);
  }
  EXPECT_DOUBLE_EQ(static_cast<double>(matrix.rows[1] * layer.dispatch_row_bytes),
                   PairBytes(layer));
}

TEST(CriticalPathOfDispatch, NothingSentTakesTheFixedTime) {
  const RankBandwidth bandwidth[] = {{1, 1}};
  EXPECT_DOUBLE_EQ(DispatchCriticalPath({2, {7, 0, 0, 7}}, 8, bandwidth, 3).us, 3);
}

TEST(EpAgainstTp, RatiosOfChapter17) {
  const int64_t s = 1 << 20;
  for (const int64_t machines : {1, 2, 4, 16}) {
    for (const int64_t k : {1, 2, 8}) {
      const auto ep = static_cast<double>(EpScaleBytes(s, k));
      EXPECT_DOUBLE_EQ(ep / static_cast<double>(UnfusedTpScaleBytes(s, machines, k)),
                       EpOverUnfusedTp(machines));
      EXPECT_DOUBLE_EQ(ep / static_cast<double>(FusedTpScaleBytes(s, machines)),
                       EpOverFusedTp(machines, k));
      EXPECT_LE(EpOverFusedTpDedup(machines, k), 1);
    }
  }
  EXPECT_DOUBLE_EQ(EpOverUnfusedTp(4), 1.0 / 4);
  EXPECT_DOUBLE_EQ(EpOverFusedTp(16, 2), 2.0 / 16);
  EXPECT_DOUBLE_EQ(EpOverFusedTp(4, 8), 2);            // the formula exceeds 1 where K > M
  EXPECT_NEAR(EpOverFusedTpDedup(4, 8), 0.90, 0.001);  // one copy a machine does not
}

// Mean number of shares that a set of k experts touches, over all C(E, k) sets.
double DistinctByEnumeration(int experts, int groups, int top_k) {
  int64_t sets = 0, touched = 0;
  for (uint32_t set = 0; set < (uint32_t{1} << experts); ++set) {
    if (std::popcount(set) != top_k) continue;
    ++sets;
    for (int g = 0; g < groups; ++g) {
      const Share share = ShareOf(experts, groups, g);
      for (int64_t e = share.begin; e < share.end; ++e) {
        if ((set >> e & 1) == 0) continue;
        ++touched;
        break;
      }
    }
  }
  return static_cast<double>(touched) / static_cast<double>(sets);
}

TEST(DistinctGroups, EqualTheMeanOverAllSetsOfExperts) {
  for (const int experts : {1, 4, 7, 12}) {
    for (const int groups : {1, 2, 3, 4, 5}) {
      for (int k = 1; k <= experts; ++k) {
        EXPECT_NEAR(ExpectedDistinctGroups(experts, groups, k),
                    DistinctByEnumeration(experts, groups, k), 1e-12)
            << experts << " experts, " << groups << " groups, top " << k;
      }
    }
  }
}

TEST(DistinctGroups, PublishedShapes) {
  // 256 experts, top-8: distinct nodes and, of them, remote ones.
  const double distinct[] = {1.993, 3.614, 5.295}, remote[] = {0.997, 2.711, 4.633};
  const double apart[] = {4, 6, 7};
  for (int i = 0; i < 3; ++i) {
    const int nodes = 2 << i;
    EXPECT_NEAR(ExpectedDistinctGroups(256, nodes, 8), distinct[i], 0.0006);
    EXPECT_NEAR(ExpectedRemoteCopies(256, nodes, 8, Copies::kPerNode), remote[i], 0.0006);
    EXPECT_DOUBLE_EQ(ExpectedRemoteCopies(256, nodes, 8, Copies::kPerSlot), apart[i]);
  }
  const double ranks[] = {5.29, 6.52, 7.27, 7.68, 7.89, 8};
  for (int i = 0; i < 6; ++i) EXPECT_NEAR(ExpectedDistinctGroups(256, 8 << i, 8), ranks[i], 0.006);
  // One group of experts a node, 4 of 8 kept.
  EXPECT_NEAR(ExpectedDistinctGroupsLimited(256, 8, 4, 8), 3.629, 0.0006);
  EXPECT_NEAR(ExpectedDistinctGroupsLimited(256, 8, 4, 8) * UniformRemoteShare(8), 3.175, 0.0006);
  EXPECT_DOUBLE_EQ(ExpectedDistinctGroupsLimited(256, 8, 8, 8), ExpectedDistinctGroups(256, 8, 8));
}

TEST(DistinctGroups, ComeCloseToTheirLimit) {
  EXPECT_NEAR(ExpectedDistinctGroups(1 << 20, 4, 8), ExpectedDistinctGroupsLimit(4, 8), 1e-4);
  EXPECT_GT(ExpectedDistinctGroups(32, 4, 8), ExpectedDistinctGroupsLimit(4, 8));
  EXPECT_DOUBLE_EQ(ExpectedDistinctGroupsLimit(1, 3), 1);
}

TEST(DistinctGroups, MissesAtTheEnds) {
  EXPECT_DOUBLE_EQ(MissProbability(8, 8, 1), 0);
  EXPECT_DOUBLE_EQ(MissProbability(8, 0, 8), 1);
  EXPECT_DOUBLE_EQ(MissProbability(8, 1, 8), 0);
  EXPECT_DOUBLE_EQ(MissProbability(32, 16, 2), 16.0 / 32 * 15 / 31);
}

// 004: EP16 on 2 nodes, 32 experts, top-2; a rank has T/4 tokens. Bytes of one element.
RelayTraffic Journey(int nodes) {
  return {.ranks = 16,
          .nodes = nodes,
          .experts = 32,
          .top_k = 2,
          .tokens_per_rank = 0.25,
          .dispatch_row_bytes = 1,
          .combine_row_bytes = 1};
}

TEST(Relay, TheJourneysTraffic) {
  // 1 - (16/32)(15/31) ≈ 76 % of tokens have an expert on the other node: 2·0.76·(T/4)·d.
  EXPECT_NEAR(ExpectedRemoteCopies(32, 2, 2, Copies::kPerNode), 0.758065, 1e-6);
  EXPECT_NEAR(RelayBytesBetweenNodes(Journey(2)), 0.379032, 1e-6);
  EXPECT_NEAR(RelayBytesInsideNodes(Journey(2)), 2 * 1.7218 / 4, 1e-4);
  // pp and dp swapped: the stage on four nodes, 0.67·Td.
  EXPECT_NEAR(RelayBytesBetweenNodes(Journey(4)), 0.665323, 1e-6);
}

TEST(Relay, WithoutOneCopyANode) {
  // Both figures need dedup: 0.50 and 0.75 without.
  EXPECT_DOUBLE_EQ(2 * ExpectedRemoteCopies(32, 2, 2, Copies::kPerSlot) / 4, 0.50);
  EXPECT_DOUBLE_EQ(2 * ExpectedRemoteCopies(32, 4, 2, Copies::kPerSlot) / 4, 0.75);
  // A combine in slot order brings each part home unsummed: 0.758 out, 1 back.
  RelayTraffic unsummed = Journey(2);
  unsummed.combine = Copies::kPerSlot;
  EXPECT_NEAR(RelayBytesBetweenNodes(unsummed), (0.758065 + 1) / 4, 1e-6);
}

TEST(Relay, ASampleOfRoutesComesCloseToTheExpectation) {
  // Tokens of every rank, each with 2 of 32 experts, sent by the relay rule one by one.
  std::mt19937 dice(7);
  const int ranks = 16, nodes = 2, local = ranks / nodes;
  double between = 0, inside = 0;
  const int tokens = 40000;
  for (int t = 0; t < tokens; ++t) {
    const int home = t % ranks;
    std::set<int> experts;
    while (experts.size() < 2) experts.insert(static_cast<int>(dice() % 32));
    std::set<int> reached_nodes, reached_ranks;
    for (const int e : experts) {
      reached_ranks.insert(e / 2);
      reached_nodes.insert(e / 2 / local);
    }
    for (const int n : reached_nodes) between += n != home / local;
    for (const int r : reached_ranks) inside += r % local != home % local;
  }
  EXPECT_NEAR(2 * between / tokens / 4, RelayBytesBetweenNodes(Journey(2)), 0.005);
  EXPECT_NEAR(2 * inside / tokens / 4, RelayBytesInsideNodes(Journey(2)), 0.005);
}

}  // namespace
}  // namespace sixfold::formulas
