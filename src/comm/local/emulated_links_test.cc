// Messages that take as long as the cluster's links would (LocalWorldOptions::emulated_links). Upper bounds on time are
// far above what is meant, since the machine may be busy; they tell seconds from none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "base/testing/cases.h"
#include "comm/communicator.h"
#include "comm/local/emulated_port.h"
#include "comm/testing/conformance.h"
#include "comm/testing/run_ranks.h"

namespace sixfold {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

// A bandwidth at which `bytes` take `span`.
double GbPerS(size_t bytes, std::chrono::nanoseconds span) {
  return static_cast<double>(bytes) / static_cast<double>(span.count());
}

Cluster Nodes(std::vector<int> ranks_per_node, const Link& inside, const Link& between) {
  return {.ranks_per_node = std::move(ranks_per_node), .inside = inside, .between = between};
}

// One node whose links carry `bytes` in `span`.
Cluster OneSlowNode(int ranks, size_t bytes, std::chrono::nanoseconds span) {
  const Link link{.bandwidth_gb_s = GbPerS(bytes, span), .latency_us = 0};
  return Nodes({ranks}, link, link);
}

struct Rank {
  Rank(Transport& t, const Cluster& cluster)
      : transport(t), group(t, cluster, {Axis::kCp, 0, Members(t.world())}, ledger, control) {}
  static std::vector<int> Members(int world) {
    std::vector<int> members(world);
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  Status Send(int to, std::span<const std::byte> data) {
    SF_ASSIGN_OR_RETURN(const SendTicket ticket, group.StartSend(to, data));
    return group.FinishSend(ticket);
  }

  Transport& transport;
  Ledger ledger;
  ControlTraffic control;
  Communicator group;
};

struct Outcome {
  std::vector<Status> results;
  std::vector<steady_clock::duration> took;  // [ranks]
};

Outcome RunWorld(const Cluster& cluster, std::chrono::milliseconds timeout, const std::function<Status(Rank&)>& body) {
  LocalWorld world(cluster.ranks(), {.timeout = timeout, .emulated_links = cluster});
  Outcome outcome{.results = {}, .took = std::vector<steady_clock::duration>(cluster.ranks())};
  const auto begin = steady_clock::now();
  outcome.results = RunRanks(world, [&](Transport& transport) {
    Rank rank(transport, cluster);
    const Status status = body(rank);
    outcome.took[transport.rank()] = steady_clock::now() - begin;
    return status;
  });
  return outcome;
}

void ExpectOk(const Outcome& outcome) {
  for (const Status& status : outcome.results) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(EmulatedPort, MessagesQueueAndLatencyAddsToEach) {
  local::EmulatedPort port({.bandwidth_gb_s = 0.5, .latency_us = 3});
  const steady_clock::time_point start{1h};
  EXPECT_EQ(port.Carry(1000, start) - start, 2us + 3us);
  EXPECT_EQ(port.Carry(500, start) - start, 3us + 3us);
  EXPECT_EQ(port.Carry(0, start + 1us) - start, 3us + 3us);
  EXPECT_EQ(port.Carry(500, start + 10us) - start, 11us + 3us);  // free since 3 us
}

TEST(EmulatedPort, AbsurdLinksDoNotOverflow) {
  local::EmulatedPort port({.bandwidth_gb_s = 1e-300, .latency_us = 1e300});
  const steady_clock::time_point start{1h};
  EXPECT_EQ(port.Carry(1, start) - start, 48h);
}

TEST(EmulatedLinks, ChangeNothingButTime) {
  for (const int ranks : {2, 3, 4, 8}) {
    const Link link{.bandwidth_gb_s = 20, .latency_us = 2};
    const Cluster cluster = Nodes({ranks / 2, ranks - ranks / 2}, link, {.bandwidth_gb_s = 5, .latency_us = 10});
    LocalWorld world(ranks, {.timeout = 60s, .emulated_links = cluster});
    const auto results = RunRanks(world, [&](Transport& transport) {
      const Status status = RunConformance(transport, {.seed = 900 + static_cast<uint64_t>(ranks), .rounds = FullOr(40, 10)});
      if (!status.ok()) transport.Abort(status);
      return status;
    });
    for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(EmulatedLinks, AMessageArrivesAfterItsTransferAndLatency) {
  constexpr size_t kBytes = 1 << 20;
  Cluster cluster = OneSlowNode(2, kBytes, 60ms);
  cluster.inside.latency_us = 20'000;
  const Outcome outcome = RunWorld(cluster, 60s, [](Rank& rank) {
    std::vector<std::byte> data(kBytes, std::byte{7});
    if (rank.transport.rank() == 0) return rank.Send(1, data);
    std::fill(data.begin(), data.end(), std::byte{});
    SF_RETURN_IF_ERROR(rank.group.Recv(0, data));
    EXPECT_EQ(data.front(), std::byte{7});
    EXPECT_EQ(data.back(), std::byte{7});
    return OkStatus();
  });
  ExpectOk(outcome);
  EXPECT_GE(outcome.took[1], 80ms);
  EXPECT_GE(outcome.took[0], 80ms);  // its buffer is its own again when the receiver has it
  EXPECT_LT(outcome.took[1], 10s);
}

TEST(EmulatedLinks, ATransferGoesOnWhileBothRanksCompute) {
  constexpr size_t kBytes = 1 << 20;
  std::atomic<int64_t> received_ns = 0;
  const Outcome outcome = RunWorld(OneSlowNode(2, kBytes, 800ms), 60s, [&](Rank& rank) {
    std::vector<std::byte> own(kBytes), other(kBytes);
    const int peer = 1 - rank.transport.rank();
    SF_ASSIGN_OR_RETURN(const SendTicket ticket, rank.group.StartSend(peer, own));
    std::this_thread::sleep_for(900ms);  // the attention of a ring's round
    const auto begin = steady_clock::now();
    SF_RETURN_IF_ERROR(rank.group.Recv(peer, other));
    received_ns += (steady_clock::now() - begin).count();
    return rank.group.FinishSend(ticket);
  });
  ExpectOk(outcome);
  EXPECT_LT(received_ns, std::chrono::nanoseconds(1200ms).count());  // of both; 1600 ms if it began with the receive
}

TEST(EmulatedLinks, AllOfARanksMessagesToItsNodeQueueAndThoseToOtherNodesQueueApart) {
  constexpr size_t kBytes = 1 << 16;
  const Link link{.bandwidth_gb_s = GbPerS(kBytes, 50ms), .latency_us = 0};
  const Outcome outcome = RunWorld(Nodes({3, 1}, link, link), 60s, [](Rank& rank) {
    std::vector<std::byte> data(kBytes);
    if (rank.transport.rank() != 0) return rank.group.Recv(0, data);
    std::vector<SendTicket> tickets;
    for (const int to : {1, 2, 3}) {
      SF_ASSIGN_OR_RETURN(tickets.emplace_back(), rank.group.StartSend(to, data));
    }
    for (const SendTicket ticket : tickets) SF_RETURN_IF_ERROR(rank.group.FinishSend(ticket));
    return OkStatus();
  });
  ExpectOk(outcome);
  EXPECT_GE(outcome.took[1], 50ms);
  EXPECT_GE(outcome.took[2], 100ms);
  EXPECT_GE(outcome.took[3], 50ms);
  // That rank 3 does not queue behind rank 2 is a matter of milliseconds on an idle machine: EmulatedPort has it exactly.
}

TEST(EmulatedLinks, ATransferLongerThanTheTimeOutIsSlowNotDeadAndUsesNoProcessor) {
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  // Rank 0 waits for rank 1 to take its message, rank 2 for rank 1's next.
  const Outcome outcome = RunWorld(OneSlowNode(3, 1 << 16, 2s), 400ms, [](Rank& rank) {
    std::vector<std::byte> data(1 << 16), token(1);
    if (rank.transport.rank() == 0) return rank.Send(1, data);
    if (rank.transport.rank() == 2) return rank.group.Recv(1, token);
    SF_RETURN_IF_ERROR(rank.group.Recv(0, data));
    return rank.Send(2, token);
  });
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  ExpectOk(outcome);
  EXPECT_GE(outcome.took[2], 2s);
  const double cpu = static_cast<double>(after.tv_sec - before.tv_sec) +
                     static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  EXPECT_LT(cpu, FullOr(0.2, 1.0));  // of 6 seconds of waiting
}

TEST(EmulatedLinks, ADeadRankIsFoundWhileAnothersTransferIsUnderWay) {
  const Outcome outcome = RunWorld(OneSlowNode(3, 1 << 16, 60s), 500ms, [](Rank& rank) {
    std::vector<std::byte> data(1 << 16);
    if (rank.transport.rank() == 2) {  // takes no part; the instance ends without it
      while (rank.transport.Failed().ok()) std::this_thread::sleep_for(1ms);
      return rank.transport.Failed();
    }
    std::vector<std::byte> none, other(1 << 16), token(8);
    const std::span<const std::byte> send[] = {rank.transport.rank() == 1 ? std::span<const std::byte>(data) : none, none, none};
    const std::span<std::byte> nothing;
    if (rank.transport.rank() == 1)
      return rank.group.AllToAll(send, std::vector<std::span<std::byte>>{nothing, nothing, nothing});
    return rank.group.AllToAll(send, std::vector<std::span<std::byte>>{nothing, other, token});
  });
  EXPECT_EQ(outcome.results[0].code(), StatusCode::kDeadline);
  EXPECT_THAT(outcome.results[0].message(), HasSubstr("rank 0 waited"));
  EXPECT_THAT(outcome.results[0].message(), HasSubstr("for rank 2"));
  EXPECT_LT(outcome.took[0], 20s);
  EXPECT_LT(outcome.took[1], 20s);
}

TEST(EmulatedLinks, AFailureEndsAWaitForATransfer) {
  const Outcome outcome = RunWorld(OneSlowNode(3, 1 << 16, 60s), 120s, [](Rank& rank) {
    std::vector<std::byte> data(1 << 16);
    if (rank.transport.rank() == 0) return rank.Send(1, data);
    if (rank.transport.rank() == 1) return rank.group.Recv(0, data);
    std::this_thread::sleep_for(50ms);
    rank.transport.Abort(Internal("rank 2 gave up"));
    return rank.transport.Failed();
  });
  for (const Status& status : outcome.results) EXPECT_EQ(status.message(), "rank 2 gave up");
  for (const auto took : outcome.took) EXPECT_LT(took, 20s);
}

}  // namespace
}  // namespace sixfold
