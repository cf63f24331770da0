// What happens to all ranks when one goes astray.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <numeric>
#include <thread>

#include "comm/communicator.h"
#include "comm/testing/run_ranks.h"
#include "comm/watch.h"

namespace sixfold {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A rank with a tensor-parallel group over everybody and one over everybody for control.
struct Rank {
  explicit Rank(Transport& t)
      : transport(t),
        members([&] {
          std::vector<int> all(t.world());
          std::iota(all.begin(), all.end(), 0);
          return all;
        }()),
        cluster(Cluster::OneNode(t.world())),
        tp(t, cluster, {Axis::kTp, 3, members}, ledger, control),
        world(t, cluster, {Axis::kDp, 0, members}, ledger, control) {}

  Status AllReduce(int64_t elements = 64) {
    std::vector<float> x(static_cast<size_t>(elements), 1.0F);
    return tp.AllReduce(ReduceType::kF32, CutTree(transport.world(), transport.world()), elements,
                        x.data(), x.data());
  }

  Transport& transport;
  std::vector<int> members;
  Cluster cluster;
  Ledger ledger;
  ControlTraffic control;
  Communicator tp, world;
};

struct Outcome {
  std::vector<Status> results;
  std::chrono::duration<double> took{};
  // The rank that failed of itself; the others have its words.
  Status first;
};

Outcome RunWorld(int ranks, std::chrono::milliseconds timeout,
                 const std::function<Status(Rank&)>& body) {
  LocalWorld world(ranks, {.timeout = timeout});
  Outcome outcome;
  const auto begin = std::chrono::steady_clock::now();
  outcome.results = RunRanks(world, [&](Transport& transport) {
    Rank rank(transport);
    return body(rank);
  });
  outcome.took = std::chrono::steady_clock::now() - begin;
  for (const Status& status : outcome.results) {
    if (!status.ok() && status.code() != StatusCode::kUnavailable) outcome.first = status;
  }
  return outcome;
}

void ExpectOneStory(const Outcome& outcome) {
  int first = 0;
  for (const Status& status : outcome.results) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message(), outcome.first.message());
    first += status.code() != StatusCode::kUnavailable ? 1 : 0;
  }
  EXPECT_EQ(first, 1);
}

// Twelve layers of one step, then the next plan.
Status Steps(Rank& rank, int skipping_rank) {
  for (int step = 0; step < 3; ++step) {
    std::vector<std::byte> plan(100);
    SF_RETURN_IF_ERROR(rank.world.Broadcast(0, &plan));
    for (int layer = 0; layer < 12; ++layer) {
      rank.transport.Progress({.step = step, .layer = layer});
      if (step == 1 && layer == 4 && rank.transport.rank() == skipping_rank) continue;
      SF_RETURN_IF_ERROR(rank.AllReduce());
    }
    rank.transport.Progress({.step = step, .layer = -1});
  }
  return OkStatus();
}

TEST(LocalFaults, NobodySkips) {
  for (const Status& status : RunWorld(4, 60s, [](Rank& rank) { return Steps(rank, -1); }).results)
    EXPECT_TRUE(status.ok()) << status.message();
}

TEST(LocalFaults, ASkippedCollectiveIsNamed) {
  for (const int ranks : {2, 4}) {
    const Outcome outcome = RunWorld(ranks, 1s, [&](Rank& rank) { return Steps(rank, 1); });
    ExpectOneStory(outcome);
    EXPECT_LT(outcome.took, 15s);
    // Found as a wrong message or, where nothing wrong is sent, at the deadline.
    EXPECT_THAT(outcome.first.message(),
                AllOf(AnyOf(HasSubstr("ranks diverge: "), HasSubstr("waited ")),
                      HasSubstr("; first difference: "), HasSubstr("all_reduce 16 of tp group 3"),
                      HasSubstr("layer 4, step 1"), HasSubstr("layer 5, step 1")));
  }
}

TEST(LocalFaults, AnotherOperationIsADivergence) {
  const Outcome outcome = RunWorld(3, 60s, [](Rank& rank) {
    rank.transport.Progress({.step = 7, .layer = 2});
    SF_RETURN_IF_ERROR(rank.AllReduce());
    return rank.transport.rank() == 1 ? rank.tp.Barrier() : rank.AllReduce();
  });
  ExpectOneStory(outcome);
  EXPECT_EQ(outcome.first.code(), StatusCode::kInternal);
  EXPECT_THAT(outcome.first.message(),
              AllOf(HasSubstr("all_reduce 1 of tp group 3 (layer 2, step 7)"),
                    HasSubstr("barrier 1 of tp group 3 (layer 2, step 7)")));
}

TEST(LocalFaults, AnotherNumberOrGroupIsADivergence) {
  for (const Operation other :
       {Operation{CommOp::kAllGather, 3, 6}, Operation{CommOp::kAllGather, 4, 5}}) {
    const Outcome outcome = RunWorld(2, 60s, [&](Rank& rank) {
      std::byte mine{}, theirs{};
      const int peer = 1 - rank.transport.rank();
      const SendPart send = {peer, std::span(&mine, 1)};
      const RecvPart recv = {peer, std::span(&theirs, 1)};
      const Operation operation = peer == 0 ? other : Operation{CommOp::kAllGather, 3, 5};
      return rank.transport.Exchange(operation, std::span(&send, 1), std::span(&recv, 1));
    });
    ExpectOneStory(outcome);
    EXPECT_THAT(outcome.first.message(),
                AllOf(HasSubstr(Describe(Operation{CommOp::kAllGather, 3, 5})),
                      HasSubstr(Describe(other))));
  }
}

TEST(LocalFaults, TwoRanksThatFailAtOnceBothHearOfIt) {
  for (int round = 0; round < 100; ++round) {
    const Outcome outcome = RunWorld(2, 60s, [&](Rank& rank) {
      std::byte mine{}, theirs{};
      const int peer = 1 - rank.transport.rank();
      const SendPart send = {peer, std::span(&mine, 1)};
      const RecvPart recv = {peer, std::span(&theirs, 1)};
      const Operation operation{CommOp::kAllGather, 3, static_cast<uint64_t>(peer)};
      return rank.transport.Exchange(operation, std::span(&send, 1), std::span(&recv, 1));
    });
    ExpectOneStory(outcome);
    if (HasFailure()) return;
  }
}

TEST(LocalFaults, OtherSizesAreADivergence) {
  const Outcome outcome = RunWorld(
      2, 60s, [](Rank& rank) { return rank.AllReduce(rank.transport.rank() == 1 ? 63 : 64); });
  ExpectOneStory(outcome);
  EXPECT_THAT(outcome.first.message(),
              AllOf(HasSubstr("all_reduce 0 of tp group 3"), HasSubstr("256"), HasSubstr("252")));
}

TEST(LocalFaults, ABlockedThreadIsNamedWithItsPlace) {
  std::mutex mutex;
  std::condition_variable wake;
  bool others_ended = false;
  int ended = 0;
  const Outcome outcome = RunWorld(4, 1s, [&](Rank& rank) {
    for (int layer = 0; layer < 4; ++layer) {
      rank.transport.Progress({.step = 12, .layer = layer});
      SF_RETURN_IF_ERROR(rank.AllReduce());
    }
    if (rank.transport.rank() == 3) {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(wake.wait_for(lock, 20s, [&] { return others_ended; }));
      return rank.AllReduce();
    }
    rank.transport.Progress({.step = 12, .layer = 4});
    const Status status = rank.AllReduce();
    const std::lock_guard lock(mutex);
    if (++ended == 3) others_ended = true;
    wake.notify_all();
    return status;
  });
  ExpectOneStory(outcome);
  EXPECT_EQ(outcome.first.code(), StatusCode::kDeadline);
  EXPECT_THAT(outcome.first.message(),
              AllOf(HasSubstr("for rank 3 in all_reduce 4 of tp group 3 (layer 4, step 12)"),
                    HasSubstr("rank 3 was last seen in layer 3, step 12 (last operation: "
                              "all_reduce 3 of tp group 3")));
  EXPECT_LT(outcome.took, 15s);
}

// In sleeps of a clock of its own: a busy machine makes both late.
TEST(LocalFaults, TheDeadlineIsNeitherEarlyNorMuchTooLate) {
  constexpr auto kTimeout = 400ms;
  std::atomic<bool> over = false;
  std::atomic<int> sleeps = 0;
  std::thread clock([&] {
    while (!over) {
      std::this_thread::sleep_for(kTimeout);
      ++sleeps;
    }
  });
  const Outcome outcome = RunWorld(2, kTimeout, [&](Rank& rank) {
    rank.transport.Progress({.step = 1, .layer = 0});
    if (rank.transport.rank() == 0) {
      const Status status = rank.AllReduce();
      over = true;
      return status;
    }
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    while (!over && std::chrono::steady_clock::now() < give_up) std::this_thread::sleep_for(1ms);
    return rank.transport.Failed();
  });
  const int waited = sleeps;
  clock.join();
  EXPECT_EQ(outcome.first.code(), StatusCode::kDeadline);
  EXPECT_GE(outcome.took, kTimeout);
  EXPECT_LE(waited, 3);
}

TEST(LocalFaults, AChainOfWaitsBlamesItsEnd) {
  // 0 waits for 1, 1 for 2, 2 for 3, which is blocked until the others have ended.
  std::mutex mutex;
  std::condition_variable wake;
  int ended = 0;
  const Outcome outcome = RunWorld(4, 1s, [&](Rank& rank) {
    const int me = rank.transport.rank();
    Communicator pp(rank.transport, rank.cluster, {Axis::kPp, 9, rank.members}, rank.ledger,
                    rank.control);
    std::vector<std::byte> data(10);
    if (me == 3) {
      rank.transport.Progress({.step = 5, .layer = 30});
      std::unique_lock lock(mutex);
      EXPECT_TRUE(wake.wait_for(lock, 20s, [&] { return ended == 3; }));
      return rank.transport.Failed();
    }
    const Status status = pp.Recv(me + 1, data);
    const std::lock_guard lock(mutex);
    ++ended;
    wake.notify_all();
    return status;
  });
  ExpectOneStory(outcome);
  EXPECT_THAT(outcome.first.message(), HasSubstr("rank 3 was last seen in layer 30, step 5"));
}

TEST(LocalFaults, SlowIsNotDead) {
  // Rank 2 takes three time-outs, saying that it is alive; nobody gives up, also not those that
  // wait for somebody who waits for it.
  const auto results = RunWorld(3, 1s, [](Rank& rank) {
                         Communicator pp(rank.transport, rank.cluster, {Axis::kPp, 9, rank.members},
                                         rank.ledger, rank.control);
                         std::vector<std::byte> data(10);
                         const int me = rank.transport.rank();
                         if (me == 2) {
                           for (int i = 0; i < 60; ++i) {
                             std::this_thread::sleep_for(50ms);
                             rank.transport.Progress({.step = i});
                           }
                         } else {
                           SF_RETURN_IF_ERROR(pp.Recv(me + 1, data));
                         }
                         if (me == 0) return OkStatus();
                         SF_ASSIGN_OR_RETURN(const SendTicket ticket, pp.StartSend(me - 1, data));
                         return pp.FinishSend(ticket);
                       }).results;
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(LocalFaults, AbortReachesEverybodyWithItsWords) {
  const Outcome outcome = RunWorld(4, 60s, [](Rank& rank) {
    if (rank.transport.rank() == 2) {
      rank.transport.Abort(OutOfMemory("rank 2: no memory for pages"));
      return rank.transport.Failed();
    }
    return rank.AllReduce();
  });
  ExpectOneStory(outcome);
  EXPECT_EQ(outcome.first.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(outcome.first.message(), "rank 2: no memory for pages");
}

TEST(LocalFaults, ALateSendIsTakenBack) {
  // The receiver fails before it receives; the sender's memory is its own again.
  const Outcome outcome = RunWorld(2, 60s, [](Rank& rank) {
    if (rank.transport.rank() == 0) {
      auto data = std::make_unique<std::vector<std::byte>>(1 << 20);
      SF_ASSIGN_OR_RETURN(const SendTicket ticket, rank.tp.StartSend(1, *data));
      const Status status = rank.tp.FinishSend(ticket);
      data.reset();
      return status;
    }
    std::this_thread::sleep_for(50ms);
    rank.transport.Abort(Internal("rank 1 gave up"));
    std::vector<std::byte> data(1 << 20);
    return rank.tp.Recv(0, data);
  });
  ExpectOneStory(outcome);
}

TEST(LocalWorld, ALeaderNeedNotWaitForItsPlansToBeRead) {
  std::atomic<bool> sent = false;
  const auto results =
      RunWorld(3, 60s, [&](Rank& rank) {
        std::vector<std::byte> plan(rank.transport.rank() == 0 ? 900 : 0);
        const auto give_up = std::chrono::steady_clock::now() + 20s;
        while (rank.transport.rank() == 2 && !sent && std::chrono::steady_clock::now() < give_up)
          std::this_thread::sleep_for(1ms);
        EXPECT_TRUE(rank.transport.rank() != 2 || sent);
        for (int i = 0; i < 20; ++i) {
          SF_RETURN_IF_ERROR(rank.world.Broadcast(0, &plan));
          EXPECT_EQ(plan.size(), 900U);
          if (rank.transport.rank() == 0) sent = true;
        }
        return OkStatus();
      }).results;
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
}

TEST(LocalWorld, WaitingUsesNoProcessor) {
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  const auto results = RunWorld(8, 60s, [](Rank& rank) {
                         if (rank.transport.rank() == 0) std::this_thread::sleep_for(1s);
                         std::vector<std::byte> plan(10);
                         return rank.world.Broadcast(0, &plan);
                       }).results;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.message();
  const double cpu = static_cast<double>(after.tv_sec - before.tv_sec) +
                     static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  EXPECT_LT(cpu, 0.1);  // of 7 seconds of waiting
}

}  // namespace
}  // namespace sixfold
