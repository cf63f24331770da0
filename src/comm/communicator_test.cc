#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>

#include "comm/testing/conformance.h"
#include "comm/testing/reference_sum.h"
#include "comm/testing/run_ranks.h"

namespace sixfold {
namespace {

using namespace std::chrono_literals;

class Conformance : public testing::TestWithParam<int> {};

TEST_P(Conformance, RandomPrograms) {
  const int ranks = GetParam();
  const int seeds = ranks > 8 ? 1 : 6;
  for (int seed = 1; seed <= seeds; ++seed) {
    LocalWorld world(ranks, {.timeout = 60s});
    const auto results = RunRanks(world, [&](Transport& transport) {
      const Status status =
          RunConformance(transport, {.seed = static_cast<uint64_t>(seed * 100 + ranks)});
      if (!status.ok()) transport.Abort(status);
      return status;
    });
    for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Conformance, testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 32));

std::vector<int> AllOf(int ranks) {
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// The sum of all ranks' ledgers after body(communicator).
Ledger TotalLedger(const Cluster& cluster, Axis axis,
                   const std::function<Status(Communicator&)>& body) {
  LocalWorld world(cluster.ranks(), {.timeout = 60s});
  std::mutex mutex;
  Ledger total;
  const auto results = RunRanks(world, [&](Transport& transport) {
    Ledger ledger;
    ControlTraffic control;
    Communicator comm(transport, cluster, {axis, 7, AllOf(cluster.ranks())}, ledger, control);
    const Status status = body(comm);
    const std::lock_guard lock(mutex);
    for (const auto& [key, entry] : ledger) {
      total[key].count += entry.count;
      total[key].bytes += entry.bytes;
    }
    return status;
  });
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
  return total;
}

// Sums of all ones: how many numbers met.
Status AllReduceOnes(Communicator& comm, const TreeCut& cut, int64_t elements) {
  std::vector<float> in(cut.nodes[comm.index()].size() * static_cast<size_t>(elements), 1.0F);
  std::vector<float> out(static_cast<size_t>(elements));
  SF_RETURN_IF_ERROR(comm.AllReduce(ReduceType::kF32, cut, elements, in.data(), out.data()));
  for (const float sum : out) EXPECT_EQ(sum, static_cast<float>(cut.total_nodes()));
  return OkStatus();
}

TEST(LedgerOf, AllReduceIsTwiceTheShareOfOthers) {
  // Ring volume 2 (n - 1) / n * bytes a rank; two of each rank's three peers are on the other node.
  Cluster cluster = Cluster::OneNode(4);
  cluster.ranks_per_node = {2, 2};
  cluster.between.link = LinkClass::kEthernet;
  const Ledger total = TotalLedger(cluster, Axis::kTp, [](Communicator& comm) {
    for (int i = 0; i < 3; ++i) SF_RETURN_IF_ERROR(AllReduceOnes(comm, CutTree(8, 4), 1000));
    return OkStatus();
  });
  const int64_t rank_bytes = 2 * 3 * 1000 * 4 / 4;
  EXPECT_EQ(total, (Ledger{{{Axis::kTp, CommOp::kAllReduce, LinkClass::kShm},
                            {.count = 3, .bytes = 3 * 4 * rank_bytes / 3}},
                           {{Axis::kTp, CommOp::kAllReduce, LinkClass::kEthernet},
                            {.count = 3, .bytes = 3 * 4 * rank_bytes * 2 / 3}}}));
}

TEST(LedgerOf, OneStepAndTwoStepAllReduceCountAlike) {
  for (const int64_t elements : {577, 100001}) {
    const Ledger total = TotalLedger(Cluster::OneNode(2), Axis::kTp, [&](Communicator& comm) {
      return AllReduceOnes(comm, CutTree(8, 2), elements);
    });
    EXPECT_EQ(total, (Ledger{{{Axis::kTp, CommOp::kAllReduce, LinkClass::kShm},
                              {.count = 1, .bytes = 2 * elements * 4}}}));
  }
}

TEST(LedgerOf, UnevenCutsSendEveryNode) {
  // 9 leaves over 2: nodes [0,4) [4,5) and [5,6) [6,8) [8,9).
  const TreeCut cut = CutTree(9, 2);
  ASSERT_EQ(cut.nodes[0].size(), 2U);
  ASSERT_EQ(cut.nodes[1].size(), 3U);
  const Ledger total = TotalLedger(Cluster::OneNode(2), Axis::kTp, [&](Communicator& comm) {
    return AllReduceOnes(comm, cut, 100);
  });
  EXPECT_EQ(total, (Ledger{{{Axis::kTp, CommOp::kAllReduce, LinkClass::kShm},
                            {.count = 1, .bytes = (2 + 3 + 2) * 50 * 4}}}));
}

TEST(LedgerOf, SendsCountAtTheSenderAndNothingMovesInGroupsOfOne) {
  const Ledger sends = TotalLedger(Cluster::OneNode(3), Axis::kPp, [](Communicator& comm) {
    std::vector<std::byte> data(100);
    if (comm.index() == 0) {
      SF_ASSIGN_OR_RETURN(const SendTicket ticket, comm.StartSend(2, data));
      SF_ASSIGN_OR_RETURN(const SendTicket empty, comm.StartSend(2, {}));
      SF_RETURN_IF_ERROR(comm.FinishSend(empty));
      return comm.FinishSend(ticket);
    }
    if (comm.index() != 2) return OkStatus();
    SF_RETURN_IF_ERROR(comm.Recv(0, data));
    return comm.Recv(0, {});
  });
  EXPECT_EQ(sends,
            (Ledger{{{Axis::kPp, CommOp::kSend, LinkClass::kShm}, {.count = 2, .bytes = 100}}}));
  const Ledger alone = TotalLedger(Cluster::OneNode(1), Axis::kTp, [](Communicator& comm) {
    SF_RETURN_IF_ERROR(comm.Barrier());
    std::vector<std::byte> data(5);
    SF_RETURN_IF_ERROR(comm.Broadcast(0, &data));
    return AllReduceOnes(comm, CutTree(8, 1), 10);
  });
  EXPECT_EQ(alone, Ledger{});
}

TEST(LedgerOf, EmptyOperationsCountWithoutBytes) {
  const Ledger total = TotalLedger(Cluster::OneNode(3), Axis::kEp, [](Communicator& comm) {
    const std::vector<std::span<const std::byte>> send(3);
    const std::vector<std::span<std::byte>> recv(3);
    return comm.AllToAll(send, recv);
  });
  EXPECT_EQ(total, (Ledger{{{Axis::kEp, CommOp::kAllToAll, LinkClass::kShm}, {.count = 1}}}));
}

TEST(Communicator, AllReduceInPlace) {
  for (const int64_t elements : {10, 50000}) {
    LocalWorld world(2);
    const ReferenceSum sum{.cut = CutTree(8, 2), .elements = elements, .seed = 5};
    const std::vector<std::byte> total = sum.Total();
    const auto results = RunRanks(world, [&](Transport& transport) {
      Ledger ledger;
      ControlTraffic control;
      Communicator comm(transport, Cluster::OneNode(2), {Axis::kTp, 0, {0, 1}}, ledger, control);
      std::vector<std::byte> x = sum.NodesOf(comm.index());
      const Status status = comm.AllReduce(sum.type, sum.cut, elements, x.data(), x.data());
      EXPECT_EQ(x, total);
      return status;
    });
    for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(ReferenceSum, OrderMatters) {
  // The suite could not tell a wrong order of additions if none mattered: summed left to right the
  // same numbers give other bits.
  const ReferenceSum tree{.cut = CutTree(8, 8), .elements = 1000, .seed = 3};
  std::vector<float> total(1000), chain(1000, 0.0F);
  std::memcpy(total.data(), tree.Total().data(), 4000);
  for (int m = 0; m < 8; ++m) {
    std::vector<float> part(1000);
    std::memcpy(part.data(), tree.NodesOf(m).data(), 4000);
    for (int i = 0; i < 1000; ++i) chain[i] += part[i];
  }
  int differ = 0;
  for (int i = 0; i < 1000; ++i) differ += chain[i] != total[i] ? 1 : 0;
  EXPECT_GT(differ, 100);
}

}  // namespace
}  // namespace sixfold
