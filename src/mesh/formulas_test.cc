#include "mesh/formulas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "mesh/axes.h"

namespace sixfold::formulas {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A ring all-gather done share by share: who sends how much.
Volume RingAllGatherByHand(int ranks, int64_t bytes) {
  std::vector<int64_t> sent(ranks, 0);
  for (int step = 0; step + 1 < ranks; ++step) {
    for (int r = 0; r < ranks; ++r) {
      const int share = ((r - step) % ranks + ranks) % ranks;
      sent[r] += ShareOf(bytes, ranks, share).size();
    }
  }
  return {*std::max_element(sent.begin(), sent.end()),
          std::accumulate(sent.begin(), sent.end(), int64_t{0})};
}

TEST(Ring, VolumesAreThoseOfARingWalkedByHand) {
  for (const int ranks : {1, 2, 3, 4, 7, 8}) {
    for (const int64_t bytes : {0, 1, 7, 8, 64, 1001}) {
      EXPECT_EQ(AllGather(ranks, bytes), RingAllGatherByHand(ranks, bytes))
          << ranks << " " << bytes;
      EXPECT_EQ(ReduceScatter(ranks, bytes), AllGather(ranks, bytes));
    }
  }
}

TEST(Ring, VolumesOfTheSeedsFormulas) {
  // 000 §3.2: V_AR = 2(p-1)/p·S, V_AG = V_RS = (p-1)/p·S.
  EXPECT_EQ(AllReduce(8, 64 * kMiB), (Volume{112 * kMiB, 896 * kMiB}));
  EXPECT_EQ(AllGather(8, 64 * kMiB), (Volume{56 * kMiB, 448 * kMiB}));
  EXPECT_EQ(AllToAll(8, 64 * kMiB), (Volume{7 * kMiB, 56 * kMiB}));
  EXPECT_EQ(AllReduce(1, 64), (Volume{0, 0}));
  EXPECT_EQ(AllToAll(1, 64), (Volume{0, 0}));
}

TEST(Ring, AllToAllOfUnequalSharesKeepsEachRanksOwnPart) {
  // 7 bytes on 3 ranks: 3, 2 and 2, of which rank r keeps part r: 1, 1 and 0.
  EXPECT_EQ(AllToAll(3, 7), (Volume{2, 5}));
}

TEST(Tp, ActivationOfLlama405B) {
  // 001 chapter 20: d = 16384, B = 1, N = 1024 in FP16 is about 32 MiB.
  EXPECT_EQ(ActivationBytes({.seq = 1024, .hidden = 16384}), 32 * kMiB);
}

TEST(Tp, UnitsOfALayerAreTheSeedsTable) {
  EXPECT_EQ(UnitsOf(TpForm::kTp), (TpUnits{4, 4}));
  EXPECT_EQ(UnitsOf(TpForm::kTpSp), (TpUnits{4, 4}));
  EXPECT_EQ(UnitsOf(TpForm::kTpSpRebuild), (TpUnits{4, 6}));
  EXPECT_EQ(UnitsOf(TpForm::kTp).both(), 8);
  EXPECT_EQ(UnitsOf(TpForm::kTpSp).both(), 8);
  EXPECT_EQ(UnitsOf(TpForm::kTpSpRebuild).both(), 10);
}

TEST(Tp, BoundariesAreTheSeedsRows) {
  // 000 §3.2: attention and MLP of classic TP, 2 units forward and 2 backward each.
  for (const TpForm form : {TpForm::kTp, TpForm::kTpSp}) {
    const auto rows = TpBoundaries(form);
    ASSERT_EQ(rows.size(), 4u);
    for (const size_t half : {0, 2}) {
      EXPECT_EQ(UnitsOf(rows[half].forward) + UnitsOf(rows[half + 1].forward), 2);
      EXPECT_EQ(UnitsOf(rows[half].backward) + UnitsOf(rows[half + 1].backward), 2);
    }
  }
  // Forward and backward complement each other: an identity one way is an all-reduce the other,
  // an all-gather a reduce-scatter.
  for (const TpBoundary& row : TpBoundaries(TpForm::kTp)) {
    EXPECT_EQ(UnitsOf(row.forward) + UnitsOf(row.backward), 2) << row.site;
  }
  int gathers = 0, scatters = 0;
  for (const TpBoundary& row : TpBoundaries(TpForm::kTpSp)) {
    EXPECT_NE(row.forward, row.backward) << row.site;
    gathers += (row.forward == Collective::kAllGather) + (row.backward == Collective::kAllGather);
    scatters +=
        (row.forward == Collective::kReduceScatter) + (row.backward == Collective::kReduceScatter);
  }
  // Four all-reduces are four all-gathers and four reduce-scatters.
  EXPECT_EQ(gathers, 4);
  EXPECT_EQ(scatters, 4);
  EXPECT_EQ(TpBoundaries(TpForm::kTpSpRebuild).size(), 6u);
  EXPECT_EQ(NameOf(TpBoundaries(TpForm::kTp)[1].forward), "all_reduce");
}

TEST(Tp, BytesOfALayer) {
  const int64_t s = ActivationBytes({.seq = 4096, .hidden = 8192});
  EXPECT_EQ(s, 64 * kMiB);
  EXPECT_EQ(TpLayerBytes(TpForm::kTp, 8, s), (TpBytes{224 * kMiB, 224 * kMiB, 448 * kMiB}));
  EXPECT_EQ(TpLayerBytes(TpForm::kTpSp, 8, s), (TpBytes{224 * kMiB, 224 * kMiB, 448 * kMiB}));
  EXPECT_EQ(TpLayerBytes(TpForm::kTpSpRebuild, 8, s),
            (TpBytes{224 * kMiB, 336 * kMiB, 560 * kMiB}));
  // About 25 % more than classic TP.
  EXPECT_EQ(TpLayerBytes(TpForm::kTpSpRebuild, 8, s).both * 4,
            TpLayerBytes(TpForm::kTp, 8, s).both * 5);
  EXPECT_EQ(TpLayerBytes(TpForm::kTp, 1, s), (TpBytes{0, 0, 0}));
}

TEST(Pp, OneSendLessThanStages) {
  const PpTraffic traffic = PpStepBytes(4, 32 * kMiB);
  EXPECT_EQ(traffic.sends, 3);
  EXPECT_EQ(traffic.send_bytes, 32 * kMiB);
  EXPECT_EQ(traffic.total_bytes, 96 * kMiB);
  EXPECT_EQ(PpStepBytes(1, 32 * kMiB).total_bytes, 0);
}

TEST(Pp, AStageOfTheJourneySendsAQuarterOfTheTokens) {
  // 004 hop 5: GPU 11 sends its [T/4, d] slice, 0.25·Td.
  EXPECT_EQ(PpSliceBytes({.seq = 8192, .hidden = 4096}, 4), 8192 / 4 * 4096 * 2);
  EXPECT_EQ(PpSliceBytes({.seq = 7, .hidden = 1, .dtype_bytes = 1}, 4), 2);
}

TEST(Handoff, OptOfTheSeed) {
  // 000 §2.3: OPT-175B (96 layers, hidden 12288) has about 4.5 MB a token.
  const int64_t token = KvBytesPerToken(KvShape{.layers = 96, .kv_heads = 96, .head_dim = 128});
  EXPECT_EQ(token, 4'718'592);
  const int64_t bytes = HandoffBytes(token, 2048);
  EXPECT_EQ(bytes, int64_t{9} << 30);  // "about 9.2 GB": 9 GiB, 9.66e9 bytes
  // The seed's 17.6 ms takes 9216 MiB for MB and 8·64 GB/s for GiB/s; in one unit it is 18.9 ms.
  EXPECT_NEAR(TransferMs(bytes, 8 * 64, 0), 18.874, 0.001);
  EXPECT_NEAR(9216.0 / 1024 / 512 * 1000, 17.6, 0.05);
  EXPECT_NEAR(TransferMs(bytes, 8 * 64, 2.5), 21.374, 0.001);
}

TEST(Handoff, BytesOfATokenInPublishedModels) {
  const auto gqa = [](int64_t layers, int64_t heads) {
    return KvBytesPerToken(KvShape{.layers = layers, .kv_heads = heads, .head_dim = 128});
  };
  EXPECT_EQ(gqa(32, 8), 128 << 10);   // Llama-3-8B
  EXPECT_EQ(gqa(80, 8), 320 << 10);   // Llama-3-70B
  EXPECT_EQ(gqa(126, 8), 504 << 10);  // Llama-3.1-405B
  EXPECT_EQ(gqa(94, 4), 188 << 10);   // Qwen3-235B-A22B
  // DeepSeek-V3, MLA: 68.6 KiB.
  EXPECT_EQ(KvBytesPerToken(MlaShape{.layers = 61, .kv_rank = 512, .rope_dim = 64}), 70272);
}

TEST(Handoff, WhatTheJourneysTokenLeaves) {
  // 004 hop 6: 2·n_kv·d_h·8 elements.
  EXPECT_EQ(KvBytesPerToken(KvShape{.layers = 8, .kv_heads = 4, .head_dim = 32, .dtype_bytes = 1}),
            2 * 4 * 32 * 8);
}

constexpr CpShape kShape{
    .seq = 96, .batch = 2, .heads = 12, .kv_heads = 4, .head_dim = 5, .dtype_bytes = 2};

TEST(Cp, GatherAndRingMoveTheSameBytes) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const CpTraffic gather = CpAllGather(kShape, ranks), ring = CpRing(kShape, ranks);
    const int64_t kv = 2 * 96 * 2 * 4 * 5 * 2;
    EXPECT_EQ(gather.bytes, (Volume{kv / ranks * (ranks - 1), kv * (ranks - 1)}));
    EXPECT_EQ(ring.bytes, gather.bytes);
    EXPECT_EQ(ring.rounds, ranks - 1);
    EXPECT_EQ(gather.kv_peak_bytes, kv);
    EXPECT_EQ(ring.kv_peak_bytes, ranks == 1 ? kv : kv / ranks * 2);
  }
}

TEST(Cp, TokensThatDoNotComeOutEqual) {
  // 5 tokens as 3 and 2: who holds 2 receives 3.
  const CpShape shape{.seq = 5, .heads = 1, .kv_heads = 1, .head_dim = 1, .dtype_bytes = 1};
  EXPECT_EQ(CpRing(shape, 2).bytes, (Volume{6, 10}));
}

// Each (token, head) of Q, K, V and O moved by hand, for `ranks` over positions [0, tokens).
Volume UlyssesByHand(const CpShape& s, int ranks, int64_t tokens) {
  const auto owner = [&](int64_t units, int64_t unit) {
    for (int r = 0; r < ranks; ++r) {
      if (unit < ShareOf(units, ranks, r).end) return r;
    }
    return -1;
  };
  const int64_t row = s.batch * s.head_dim * s.dtype_bytes;
  std::vector<int64_t> sent(ranks, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    const int home = owner(tokens, t);
    std::vector<std::vector<bool>> kv_at(ranks, std::vector<bool>(s.kv_heads, false));
    for (int64_t head = 0; head < s.heads; ++head) {
      const int at = owner(s.heads, head);
      kv_at[at][head * s.kv_heads / s.heads] = true;
      if (at == home) continue;
      sent[home] += row;  // Q there
      sent[at] += row;    // O back
    }
    for (int at = 0; at < ranks; ++at) {
      if (at == home) continue;
      for (int64_t kv = 0; kv < s.kv_heads; ++kv) sent[home] += kv_at[at][kv] ? 2 * row : 0;
    }
  }
  return {*std::max_element(sent.begin(), sent.end()),
          std::accumulate(sent.begin(), sent.end(), int64_t{0})};
}

TEST(Cp, UlyssesMovesEveryHeadOnce) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 12}) {
    for (const int64_t seq : {96, 97, 5}) {
      CpShape shape = kShape;
      shape.seq = seq;
      EXPECT_EQ(CpUlysses(shape, ranks).bytes, UlyssesByHand(shape, ranks, seq)) << ranks;
    }
  }
}

TEST(Cp, UlyssesInClosedForm) {
  // Q, K, V and O of N·h/P elements a rank, of which a P-th stays: 4·N·h/P·(P-1)/P.
  const CpShape mha{.seq = 1024, .heads = 32, .kv_heads = 32, .head_dim = 128};
  EXPECT_EQ(CpUlysses(mha, 8).bytes.per_rank, 4 * 1024 * 4096 / 8 * 7 / 8 * 2);
  const CpShape gqa{.seq = 1024, .heads = 32, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(CpUlysses(gqa, 8).bytes.per_rank, 2 * 1024 * (4096 + 1024) / 8 * 7 / 8 * 2);
  EXPECT_EQ(CpUlysses(gqa, 8).kv_peak_bytes, CpKvBytes(gqa) / 8);
  // Below C K/V heads each rank still needs one.
  EXPECT_EQ(CpUlysses(gqa, 32).bytes.per_rank, 2 * 1024 * (4096 + 4096) / 32 * 31 / 32 * 2);
}

TEST(Cp, TheMixedFormIsUlyssesInsideAndARingOutside) {
  EXPECT_EQ(CpUlyssesRing(kShape, 4, 1).bytes, CpUlysses(kShape, 4).bytes);
  EXPECT_EQ(CpUlyssesRing(kShape, 1, 4).bytes, CpRing(kShape, 4).bytes);
  EXPECT_EQ(CpUlyssesRing(kShape, 1, 4).kv_peak_bytes, CpRing(kShape, 4).kv_peak_bytes);
  // U = 2, R = 3: 32 tokens in each a2a group, 2 of 4 K/V heads in each ring.
  const CpTraffic mixed = CpUlyssesRing(kShape, 2, 3);
  const Volume group = UlyssesByHand(kShape, 2, 32);
  const int64_t block = 2 * 32 * 2 * 2 * 5 * 2;
  EXPECT_EQ(mixed.bytes, (Volume{group.per_rank + 2 * block, 3 * group.total + 6 * 2 * block}));
  EXPECT_EQ(mixed.rounds, 4);
  EXPECT_EQ(mixed.kv_peak_bytes, 2 * block);
}

TEST(Cp, PassQSendsQueriesAndReturnsPartials) {
  // 004, a token's afterlife: one query at one rank, its partner holds half of K/V.
  const CpShape shape{.seq = 64, .heads = 4, .kv_heads = 2, .head_dim = 8};
  const int64_t query = 4 * 8 * 2, partial = 4 * (8 + 2) * 4;
  EXPECT_EQ(CpPassQ(shape, 2, 1, 4).bytes, (Volume{partial, query + partial}));
  EXPECT_EQ(CpPassQ(shape, 4, 1, 4).bytes, (Volume{3 * query, 3 * (query + partial)}));
  // Round-robin: two queries on two ranks, each sends one and returns one.
  EXPECT_EQ(CpPassQ(shape, 2, 2, 4).bytes, (Volume{query + partial, 2 * (query + partial)}));
  EXPECT_EQ(CpPassQ(shape, 1, 3, 4).bytes, (Volume{0, 0}));
}

TEST(Journey, DenseRowsOfItsTrafficTable) {
  // 004: elements that a GPU sends in a layer, for T tokens of width d, n_h/n_kv = g: all-gather
  // and reduce-scatter 0.25·Td, K/V exchange 0.5·Td/g.
  const int64_t t = 8192, d = 4096, g = 8;
  const int64_t cp_tokens = ActivationBytes({.seq = t / 2, .hidden = d, .dtype_bytes = 1});
  EXPECT_EQ(AllGather(2, cp_tokens).per_rank, t * d / 4);
  EXPECT_EQ(ReduceScatter(2, cp_tokens).per_rank, t * d / 4);
  const CpShape half_heads{.seq = t, .heads = 16, .kv_heads = 2, .head_dim = 128, .dtype_bytes = 1};
  EXPECT_EQ(CpRing(half_heads, 2).bytes.per_rank, t * d / 2 / g);
}

TEST(Modes, TheTableOfChapter20) {
  const ModelScale scale{.layers = 80,
                         .moe_layers = 58,
                         .tokens = 1024,
                         .hidden = 16384,
                         .top_k = 8,
                         .stages = 4,
                         .machines = 16};
  const int64_t nd = 32 * kMiB;
  EXPECT_EQ(ScaleOf(Mode::kTp, scale), (ModeScale{Occasion::kStep, 160, nd, 80 * nd}));
  EXPECT_EQ(ScaleOf(Mode::kPp, scale), (ModeScale{Occasion::kStep, 3, nd, 4 * nd}));
  EXPECT_EQ(ScaleOf(Mode::kCp, scale), (ModeScale{Occasion::kRequest, 15 * 80, nd / 16, 80 * nd}));
  EXPECT_EQ(ScaleOf(Mode::kEp, scale), (ModeScale{Occasion::kStep, 116, nd / 2, 58 * 8 * nd}));
  EXPECT_EQ(ScaleOf(Mode::kHandoff, scale), (ModeScale{Occasion::kRequest, 1, 80 * nd, 80 * nd}));
  // EP : TP inside one node is K : 1 when every layer has experts.
  ModelScale all = scale;
  all.moe_layers = all.layers;
  EXPECT_EQ(ScaleOf(Mode::kEp, all).total_bytes, 8 * ScaleOf(Mode::kTp, all).total_bytes);
}

TEST(Bounds, WhatInt64DoesNotHoldIsTheLargestNumber) {
  EXPECT_EQ(Product({1 << 30, 1 << 30, 8}), kBytesMax);
  EXPECT_EQ(Product({kBytesMax, 2, 0}), 0);
  EXPECT_EQ(Sum({kBytesMax, 1}), kBytesMax);
  EXPECT_EQ(ActivationBytes({.seq = 1'000'000'000, .batch = 1'000'000, .hidden = 1 << 20}),
            kBytesMax);
}

}  // namespace
}  // namespace sixfold::formulas
