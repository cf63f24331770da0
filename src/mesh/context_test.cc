#include "mesh/context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/testing/random_numbers.h"

namespace sixfold {
namespace {

ContextRule RuleOf(int size, CpForm form, int64_t chunk, int64_t interleave = 0) {
  ContextRule rule{.size = size, .form = form, .chunk = chunk, .interleave = interleave == 0 ? chunk : interleave};
  rule.by_token = rule.interleave % chunk != 0;
  return rule;
}

ContextSequence SequenceOf(int64_t first, int64_t rows, std::vector<int32_t> owners) {
  return {.first_position = first, .rows = rows, .owners = std::move(owners)};
}

TEST(DealRows, EveryRowHasOneOwnerInEveryForm) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomNumbers random(seed);
    const int size = static_cast<int>(random.Next(1, 8));
    const int64_t chunk = int64_t{16} << random.Next(0, 2);
    const auto form = static_cast<CpForm>(random.Next(0, 4));
    const int64_t interleave = random.Next(0, 1) == 0 ? 0 : int64_t{1} << random.Next(0, 3);
    const ContextRule rule = RuleOf(size, form, chunk, interleave);
    std::vector<ContextSequence> sequences;
    int64_t rows = 0;
    for (int64_t n = random.Next(1, 4); n > 0; --n) {
      ContextSequence s = SequenceOf(random.Next(0, 90), random.Next(1, 120), {});
      for (int64_t c = 0; c * chunk < s.first_position + s.rows; ++c) s.owners.push_back(static_cast<int32_t>(random.Next(0, size - 1)));
      rows += s.rows;
      sequences.push_back(std::move(s));
    }
    std::vector<int> seen(rows, 0);
    const auto deal = DealRows(rule, sequences);
    ASSERT_EQ(static_cast<int>(deal.size()), size);
    for (int m = 0; m < size; ++m) {
      for (const RowRun& run : deal[m]) {
        const ContextSequence& s = sequences[run.sequence];
        const int64_t first_row = std::accumulate(sequences.begin(), sequences.begin() + run.sequence, int64_t{0},
                                                  [](int64_t sum, const ContextSequence& q) { return sum + q.rows; });
        for (int64_t i = 0; i < run.rows; ++i) {
          const int64_t row = run.row + i * run.stride, position = run.position + i * run.stride;
          ++seen[row];
          EXPECT_EQ(position - s.first_position, row - first_row);
          const bool in_turn = form == CpForm::kStriped && !rule.by_token && s.rows > 1;
          EXPECT_EQ(m, size == 1 ? 0 : in_turn ? position % size : OwnerOf(rule, s, position));
        }
      }
    }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    // Rows whose keys another member keeps move once, from who computes them to who keeps them.
    const auto moves = KeysToMove(rule, sequences);
    int64_t moved = 0, wanted = 0;
    for (const ContextSequence& s : sequences) wanted += s.rows > 1 ? s.rows : 0;
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        for (const RowRun& run : moves[from][to]) {
          moved += run.rows;
          for (int64_t i = 0; i < run.rows; ++i) {
            EXPECT_EQ((run.position + i * run.stride) % size, from);
            EXPECT_EQ(OwnerOf(rule, sequences[run.sequence], run.position + i * run.stride), to);
          }
        }
      }
    }
    EXPECT_EQ(moved, form == CpForm::kStriped && !rule.by_token ? wanted : 0);
  }
}

TEST(DealRows, ZigzagAndStripesShareTheCausalTriangleOutEqually) {
  // 4 members, 8 runs of chunks: zigzag.
  std::vector<int32_t> zigzag = {0, 1, 2, 3, 3, 2, 1, 0}, straight = {0, 0, 1, 1, 2, 2, 3, 3};
  const ContextSequence balanced = SequenceOf(0, 128, zigzag), contiguous = SequenceOf(0, 128, straight);
  const auto pairs = [](const ContextRule& rule, const ContextSequence& s) {
    return AttendedPairs(DealRows(rule, {&s, 1}), 0);
  };
  const std::vector<int64_t> equal = pairs(RuleOf(4, CpForm::kRing, 16), balanced);
  for (const int64_t n : equal) EXPECT_EQ(n, 128 * 129 / 2 / 4);
  const std::vector<int64_t> rising = pairs(RuleOf(4, CpForm::kRing, 16), contiguous);
  for (int m = 0; m < 4; ++m) EXPECT_NEAR(static_cast<double>(rising[m]) / static_cast<double>(rising[0]), 2 * m + 1, 0.2);
  const std::vector<int64_t> stripes = pairs(RuleOf(4, CpForm::kStriped, 16), balanced);
  for (const int64_t n : stripes) EXPECT_NEAR(static_cast<double>(n), 128 * 129 / 2 / 4.0, 64);
}

// Merges what MaximalNodes gives in random order; every merge must be of siblings, and all come together.
TEST(MaximalNodes, AnyDealingComesTogetherInOneTree) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomNumbers random(seed);
    const int64_t chunks = random.Next(1, 70);
    const int size = static_cast<int>(random.Next(1, 5));
    const ChunkRange visible{random.Next(0, chunks - 1), chunks};
    std::vector<int> owner;
    for (int64_t c = 0; c < chunks; ++c) {
      owner.push_back(c > 0 && random.Next(0, 2) > 0 ? owner.back() : static_cast<int>(random.Next(0, size - 1)));
    }
    std::vector<ChunkRange> all;
    for (int m = 0; m < size; ++m) {
      std::vector<bool> held(chunks);
      for (int64_t c = 0; c < chunks; ++c) held[c] = owner[c] == m;
      int64_t covered = 0;
      for (const ChunkRange& node : MaximalNodes(visible, held)) {
        for (int64_t c = node.begin; c < node.end; ++c) EXPECT_TRUE(held[c]);
        covered += node.end - node.begin;
        all.push_back(node);
      }
      EXPECT_EQ(covered, std::count(held.begin() + visible.begin, held.end(), true));
    }
    std::vector<ChunkRange> waiting;
    while (!all.empty()) {
      const auto pick = all.begin() + random.Next(0, static_cast<int64_t>(all.size()) - 1);
      ChunkRange node = *pick;
      all.erase(pick);
      while (true) {
        const ChunkRange sibling = SiblingOf(visible, node);
        const auto at = std::find(waiting.begin(), waiting.end(), sibling);
        if (sibling.empty() || at == waiting.end()) break;
        EXPECT_TRUE(sibling.end == node.begin || node.end == sibling.begin);
        EXPECT_EQ(SiblingOf(visible, sibling), node);
        node = {std::min(node.begin, sibling.begin), std::max(node.end, sibling.end)};
        waiting.erase(at);
      }
      waiting.push_back(node);
    }
    EXPECT_EQ(waiting, std::vector<ChunkRange>{visible});
  }
}

TEST(MaximalNodes, AreAsFewAsTheTreeAllows) {
  const auto nodes = [](ChunkRange visible, std::initializer_list<int> of) {
    std::vector<bool> held(visible.end);
    for (const int c : of) held[c] = true;
    return MaximalNodes(visible, held);
  };
  EXPECT_EQ(nodes({0, 8}, {0, 1, 2, 3}), (std::vector<ChunkRange>{{0, 4}}));
  EXPECT_EQ(nodes({0, 8}, {2, 3, 4, 5, 6}), (std::vector<ChunkRange>{{2, 4}, {4, 6}, {6, 7}}));
  EXPECT_EQ(nodes({0, 6}, {4, 5}), (std::vector<ChunkRange>{{4, 6}}));
  EXPECT_EQ(nodes({0, 5}, {0, 1, 2, 3, 4}), (std::vector<ChunkRange>{{0, 5}}));
  // What a window hides does not exist.
  EXPECT_EQ(nodes({3, 8}, {3}), (std::vector<ChunkRange>{{3, 4}}));
  EXPECT_EQ(nodes({3, 8}, {3, 4, 5, 6, 7}), (std::vector<ChunkRange>{{3, 8}}));
  EXPECT_EQ(SiblingOf({3, 8}, {3, 4}), (ChunkRange{4, 8}));
  EXPECT_EQ(SiblingOf({3, 8}, {3, 8}), ChunkRange{});
}

TEST(PlanContext, MovesThePagesThatSomebodySees) {
  const ContextRule rule = RuleOf(2, CpForm::kRing, 32);
  const std::vector<ContextSequence> sequences = {SequenceOf(40, 30, {0, 1, 1}), SequenceOf(64, 1, {1, 0, 1})};
  const ContextPlan plan = PlanContext(rule, sequences, 0);
  EXPECT_TRUE(plan.prefills);
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].blocks[0].runs, (std::vector<PageRun>{{0, 0, 2}}));
  EXPECT_EQ(plan.segments[0].blocks[1].runs, (std::vector<PageRun>{{0, 2, 3}}));
  ASSERT_EQ(plan.queries.size(), 1u);
  EXPECT_EQ(plan.queries[0].home, 1);
  EXPECT_EQ(plan.queries[0].row, 30);
  EXPECT_EQ(plan.queries[0].nodes[0], (std::vector<ChunkRange>{{1, 2}}));
  EXPECT_EQ(plan.queries[0].nodes[1], (std::vector<ChunkRange>{{0, 1}, {2, 3}}));
  // Through a window of 5 the first row sees positions from 36 on.
  const ContextPlan narrow = PlanContext(rule, sequences, 5);
  EXPECT_EQ(narrow.segments[0].blocks[0].pages, 0);
  EXPECT_EQ(narrow.segments[0].blocks[1].runs, (std::vector<PageRun>{{0, 2, 3}}));
  EXPECT_EQ(narrow.queries[0].visible, (ChunkRange{1, 3}));
}

// Keys in stripes: of each member the pages of its own keys, from the first that some row sees through the window.
TEST(PlanContext, MovesTheStripesThatSomebodySees) {
  for (const int64_t interleave : {1, 4, 16}) {
    const ContextRule rule = RuleOf(3, CpForm::kRing, 64, interleave);
    for (const int64_t window : {0, 5, 47, 48, 49, 96, 400}) {
      for (int64_t first = 0; first < 260; first += 13) {
        const ContextSequence s = SequenceOf(first, 20, {});
        std::vector<PageRun> want(3, {.sequence = 0, .first = INT64_MAX, .pages = 0});
        std::vector<int64_t> own(3, 0);
        for (int64_t key = 0; key < first + 20; ++key) {
          const int m = OwnerOf(rule, {}, key);
          const int64_t page = own[m]++ / 16;
          if (window > 0 && key <= first - window) continue;
          want[m].first = std::min(want[m].first, page);
          want[m].pages = page + 1 - want[m].first;
        }
        const ContextPlan plan = PlanContext(rule, {&s, 1}, window);
        ASSERT_EQ(plan.segments.size(), 1u);
        for (int m = 0; m < 3; ++m) {
          SCOPED_TRACE(testing::Message() << "interleave " << interleave << " window " << window << " first " << first << " member " << m);
          EXPECT_EQ(plan.segments[0].blocks[m].pages, want[m].pages);
          if (want[m].pages == 0) continue;
          EXPECT_EQ(plan.segments[0].blocks[m].runs, std::vector<PageRun>{want[m]});
        }
      }
    }
  }
}

TEST(PlanContext, TakesLongContextsSegmentBySegment) {
  const ContextRule rule = RuleOf(2, CpForm::kRing, 16);
  std::vector<int32_t> owners;
  for (int c = 0; c < 150; ++c) owners.push_back(c % 2);
  const std::vector<ContextSequence> sequences = {SequenceOf(2200, 200, owners), SequenceOf(0, 20, {1, 0})};
  const auto pages = [](const ContextPlan& plan) {
    std::vector<int64_t> of;
    for (const ContextSegment& s : plan.segments) of.push_back(s.blocks[0].pages + s.blocks[1].pages);
    return of;
  };
  EXPECT_EQ(pages(PlanContext(rule, sequences, 0)), (std::vector<int64_t>{64 + 2, 64, 22}));
  // The long one sees nothing of the first segment through a window, the short one does.
  EXPECT_EQ(pages(PlanContext(rule, sequences, 100)), (std::vector<int64_t>{2, 0, 19}));
  EXPECT_EQ(pages(PlanContext(rule, {sequences.data(), 1}, 100)), std::vector<int64_t>{19});
}

// Chunk by chunk and pair by pair, as a window is defined: a query at p sees keys (p - window, p].
TEST(VisibleChunks, AreThoseWithAKeyThatSomeQuerySees) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    RandomNumbers random(seed);
    const int64_t chunk = int64_t{16} << random.Next(0, 2);
    const int64_t first = random.Next(0, 300), last = first + random.Next(0, 100);
    // Often a window that ends at a chunk's border or one beside it.
    const int64_t window = random.Next(0, 2) == 0 ? 0 : std::max<int64_t>(1, chunk * random.Next(0, 5) + random.Next(-1, 1));
    ChunkRange seen{INT64_MAX, 0};
    for (int64_t p = first; p <= last; ++p) {
      for (int64_t key = window == 0 ? 0 : std::max<int64_t>(0, p - window + 1); key <= p; ++key) {
        seen = {std::min(seen.begin, key / chunk), std::max(seen.end, key / chunk + 1)};
      }
    }
    EXPECT_EQ(VisibleChunks(chunk, first, last, window), seen);
  }
}

TEST(AttendedPairs, CountsTheKeysInsideTheWindow) {
  const ContextRule rule = RuleOf(2, CpForm::kRing, 16);
  for (const int64_t window : {0, 1, 15, 16, 17, 40, 1000}) {
    const ContextSequence s = SequenceOf(20, 50, {0, 1, 1, 0, 1});
    std::vector<int64_t> want(2, 0);
    for (int64_t p = 20; p < 70; ++p) want[s.owners[p / 16]] += window == 0 ? p + 1 : std::min(p + 1, window);
    EXPECT_EQ(AttendedPairs(DealRows(rule, {&s, 1}), window), want) << window;
  }
}

TEST(KeysSeen, CountsAMembersOwnKeysInsideTheWindow) {
  for (const int64_t interleave : {1, 4, 16}) {
    const ContextRule rule = RuleOf(3, CpForm::kRing, 64, interleave);
    for (const int64_t window : {0, 1, 5, 16, 48, 500}) {
      for (int64_t position = 0; position < 60; ++position) {
        for (int m = 0; m < 3; ++m) {
          int64_t own = 0, first = -1, last = 0;
          for (int64_t key = 0; key <= position; ++key) {
            if (OwnerOf(rule, {}, key) != m) continue;
            if (window == 0 || key > position - window) {
              if (first < 0) first = own;
              last = own + 1;
            }
            ++own;
          }
          const LocalKeys keys = KeysSeen(rule, m, position, window);
          if (first < 0) {
            EXPECT_GE(keys.first, keys.last) << position << " window " << window;
          } else {
            EXPECT_EQ(keys.first, first) << position << " window " << window << " member " << m;
            EXPECT_EQ(keys.last, last) << position << " window " << window << " member " << m;
          }
        }
      }
    }
  }
}

TEST(KeysBelow, CountsTheKeysOfEachMember) {
  for (const int64_t interleave : {1, 4, 16}) {
    const ContextRule rule = RuleOf(3, CpForm::kStriped, 64, interleave);
    std::vector<int64_t> counts(3, 0);
    for (int64_t p = 0; p < 200; ++p) {
      for (int m = 0; m < 3; ++m) EXPECT_EQ(KeysBelow(rule, m, p), counts[m]) << p;
      ++counts[OwnerOf(rule, {}, p)];
    }
  }
}

}  // namespace
}  // namespace sixfold
