#include "kv/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/testing/random_numbers.h"
#include "kv/block_pool.h"

namespace sixfold {
namespace {

KvPlacement Chunks(int owners, int64_t chunk, int64_t interleave = 0) {
  return {.owners = owners, .chunk = chunk, .interleave = interleave == 0 ? chunk : interleave};
}

std::vector<int> Deal(const KvPlacement& placement, const KvDemand& demand, std::vector<int64_t> free,
                      std::vector<int64_t> micro_batches = {1 << 30}) {
  return DealUnits(placement, demand, micro_batches, free);
}

TEST(DealUnits, APromptGoesInZigzag) {
  EXPECT_EQ(Deal(Chunks(2, 64), {.rows = 512}, {99, 99}), (std::vector<int>{0, 0, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(Deal(Chunks(4, 16), {.rows = 128}, {9, 9, 9, 9}), (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
}

TEST(DealUnits, WhatDoesNotComeOutEvenGrowsBothRunsOfAnOwner) {
  EXPECT_EQ(Deal(Chunks(2, 16), {.rows = 7 * 16}, {99, 99}), (std::vector<int>{0, 0, 1, 1, 1, 0, 0}));
  EXPECT_EQ(Deal(Chunks(3, 16), {.rows = 5 * 16}, {99, 99, 99}), (std::vector<int>{0, 1, 2, 1, 0}));
}

TEST(DealUnits, WhatDoesNotComeOutEvenGoesWhereMostIsFree) {
  EXPECT_EQ(Deal(Chunks(3, 16), {.rows = 10}, {4, 9, 7}), std::vector<int>{1});
  EXPECT_EQ(Deal(Chunks(3, 16), {.rows = 20}, {4, 9, 7}), (std::vector<int>{1, 1}));
  EXPECT_EQ(Deal(Chunks(3, 16), {.rows = 20}, {4, 5, 5}), (std::vector<int>{1, 2}));
}

TEST(DealUnits, AChunkThatHasAnOwnerKeepsIt) {
  // Position 20 lies in the second chunk, which is held already.
  EXPECT_EQ(Deal(Chunks(2, 16), {.first_position = 20, .rows = 12, .units = 2}, {9, 9}), std::vector<int>{});
  EXPECT_EQ(Deal(Chunks(2, 16), {.first_position = 20, .rows = 13, .units = 2}, {8, 9}), std::vector<int>{1});
}

TEST(DealUnits, NewTokensGoToOwnersInTurn) {
  std::vector<int> owners;
  for (int64_t p = 0; p < 192; p += 16) {
    for (const int o : Deal(Chunks(3, 16, 32), {.first_position = p, .rows = 1, .units = p / 16}, {9, 9, 9})) owners.push_back(o);
  }
  EXPECT_EQ(owners, (std::vector<int>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
}

TEST(DealUnits, EachMicroBatchIsDealtByItself) {
  EXPECT_EQ(Deal(Chunks(2, 16), {.rows = 128}, {9, 9}, {64, 128}), (std::vector<int>{0, 1, 1, 0, 0, 1, 1, 0}));
}

TEST(DealUnits, AnOwnerWithoutRoomIsPassedOver) {
  EXPECT_EQ(Deal(Chunks(2, 16), {.rows = 64}, {1, 9}), (std::vector<int>{0, 1, 1, 1}));
  EXPECT_EQ(Deal(Chunks(2, 16), {.first_position = 32, .rows = 1, .units = 2}, {0, 1}), std::vector<int>{1});
}

// Sequences that come and go: no block is held twice, a chunk has one owner, a long sequence fills all owners alike.
TEST(BlockPool, DealsRandomSequencesWithoutOverlap) {
  RandomNumbers random(5);
  for (int round = 0; round < 100; ++round) {
    const int owners = static_cast<int>(random.Next(1, 5));
    const KvPlacement placement = owners == 1 ? KvPlacement{} : Chunks(owners, int64_t{16} << random.Next(0, 2));
    const int64_t blocks = 64;
    BlockPool pool(static_cast<int32_t>(placement.UnitsOfPool(blocks)), placement.pools());
    EXPECT_EQ(pool.total(), placement.UnitsIn(blocks));
    std::vector<std::vector<int32_t>> units(4);
    std::vector<int64_t> positions(4, 0);
    for (int step = 0; step < 30; ++step) {
      const auto s = static_cast<size_t>(random.Next(0, 3));
      const int64_t rows = random.Next(0, 2) == 0 ? random.Next(2, 70) : 1;
      const int64_t lacks = placement.UnitsFor(positions[s] + rows) - static_cast<int64_t>(units[s].size());
      if (lacks > pool.free()) {
        for (const int32_t u : units[s]) pool.Give(BlockId(u));
        units[s].clear();
        positions[s] = 0;
        continue;
      }
      const std::vector<int64_t> bounds = {rows};
      pool.TakeFor(placement, {.first_position = positions[s], .rows = rows, .units = static_cast<int64_t>(units[s].size())}, bounds, &units[s]);
      positions[s] += rows;
      std::set<int32_t> held;
      for (size_t i = 0; i < 4; ++i) {
        const std::vector<int32_t> table = BlockTable(placement, units[i], positions[i], blocks);
        EXPECT_EQ(static_cast<int64_t>(table.size()), BlocksFor(positions[i]));
        for (size_t b = 0; b < table.size(); ++b) {
          EXPECT_TRUE(held.insert(table[b]).second);
          EXPECT_LT(table[b], owners * blocks);
          const size_t first = b / placement.unit_blocks() * placement.unit_blocks();
          EXPECT_EQ(table[b] / blocks, table[first] / blocks);
        }
      }
    }
  }
}

TEST(KvPlacement, ALongSequenceRestsOnAllOwnersAlike) {
  const KvPlacement placement = Chunks(4, 256);
  for (const int64_t step : {512, 1024, 4096, 16384}) {
    BlockPool pool(static_cast<int32_t>(placement.UnitsOfPool(placement.BlocksOfOwner(16384, 1))), placement.pools());
    std::vector<int32_t> units;
    for (int64_t p = 0; p < 16384; p += step) {
      const std::vector<int64_t> bounds = {step};
      pool.TakeFor(placement, {.first_position = p, .rows = step, .units = static_cast<int64_t>(units.size())}, bounds, &units);
    }
    std::vector<int> of(4, 0);
    for (const int32_t u : units) ++of[u / 16];
    EXPECT_EQ(of, (std::vector<int>{16, 16, 16, 16})) << step;
    EXPECT_EQ(pool.free(), 0);
  }
}

TEST(KvPlacement, StripesHaveTheirBlocksEverywhere) {
  const KvPlacement placement{.owners = 4, .chunk = 256, .interleave = 1, .by_token = true};
  EXPECT_EQ(placement.unit_tokens(), 64);
  EXPECT_EQ(placement.TokensIn(3), 192);
  EXPECT_EQ(BlockTable(placement, std::vector<int32_t>{7, 2, 5}, 100, 8), (std::vector<int32_t>{7, 2}));
}

}  // namespace
}  // namespace sixfold
