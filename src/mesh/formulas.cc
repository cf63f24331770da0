#include "mesh/formulas.h"

#include <algorithm>

#include "base/check.h"
#include "mesh/axes.h"

namespace sixfold::formulas {

namespace {

// The larger shares come first and the smaller ones last.
int64_t LargestShare(int64_t units, int parts) { return ShareOf(units, parts, 0).size(); }
int64_t SmallestShare(int64_t units, int parts) { return ShareOf(units, parts, parts - 1).size(); }

using enum Collective;

// 000 §3.2: f stands before the column-parallel GEMM, g behind the row-parallel one.
constexpr TpBoundary kTpBoundaries[] = {
    {"attention_in", kNone, kAllReduce},
    {"attention_out", kAllReduce, kNone},
    {"ffn_in", kNone, kAllReduce},
    {"ffn_out", kAllReduce, kNone},
};
// The last two are left out by kTpSp: the gathers of ∇W = Xᵀ∇Y where only X's shard was kept.
constexpr TpBoundary kTpSpBoundaries[] = {
    {"attention_in", kAllGather, kReduceScatter}, {"attention_out", kReduceScatter, kAllGather},
    {"ffn_in", kAllGather, kReduceScatter},       {"ffn_out", kReduceScatter, kAllGather},
    {"attention_rebuild", kNone, kAllGather},     {"ffn_rebuild", kNone, kAllGather},
};
constexpr int kRebuilds = 2;

// Query and K/V heads of one rank of `ranks` that attention's heads are dealt to; query heads of
// one group read the same K/V head.
struct Heads {
  int64_t query = 0, kv = 0;
};
Heads HeadsOf(const CpShape& shape, int ranks, int rank) {
  SF_CHECK_GE(shape.kv_heads, 1);
  SF_CHECK_EQ(shape.heads % shape.kv_heads, 0);
  const int64_t group = shape.heads / shape.kv_heads;
  const Share query = ShareOf(shape.heads, ranks, rank);
  if (query.size() == 0) return {};
  return {query.size(), (query.end - 1) / group - query.begin / group + 1};
}

// K and V of `tokens` positions for `heads` K/V heads.
int64_t KvRows(const CpShape& shape, int64_t tokens, int64_t heads) {
  return Product({2, tokens, shape.batch, heads, shape.head_dim, shape.dtype_bytes});
}

// The two all-to-alls among `ranks` over `tokens` positions: rank r sends its tokens' heads to
// whoever computes them, and its heads' outputs to whoever holds the tokens.
Volume UlyssesVolume(const CpShape& shape, int ranks, int64_t tokens) {
  const int64_t head_bytes = Product({shape.batch, shape.head_dim, shape.dtype_bytes});
  int64_t heads_sent = 0;  // by a token: query, K and V heads, over all ranks
  for (int r = 0; r < ranks; ++r) {
    const Heads heads = HeadsOf(shape, ranks, r);
    heads_sent += heads.query + 2 * heads.kv;
  }
  Volume volume;
  for (int r = 0; r < ranks; ++r) {
    const Heads heads = HeadsOf(shape, ranks, r);
    const int64_t own = ShareOf(tokens, ranks, r).size();
    const int64_t to_heads = Product({own, heads_sent - heads.query - 2 * heads.kv, head_bytes});
    const int64_t to_tokens = Product({tokens - own, heads.query, head_bytes});
    volume.per_rank = std::max(volume.per_rank, Sum({to_heads, to_tokens}));
    volume.total = Sum({volume.total, to_heads, to_tokens});
  }
  return volume;
}

}  // namespace

int64_t Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  bool over = false;
  for (const int64_t factor : factors) {
    SF_CHECK_GE(factor, 0);
    if (factor == 0) return 0;
    over = over || __builtin_mul_overflow(product, factor, &product);
  }
  return over ? kBytesMax : product;
}

int64_t Sum(std::initializer_list<int64_t> terms) {
  int64_t sum = 0;
  for (const int64_t term : terms) {
    SF_CHECK_GE(term, 0);
    if (__builtin_add_overflow(sum, term, &sum)) return kBytesMax;
  }
  return sum;
}

int64_t ActivationBytes(const Activation& a) {
  return Product({a.seq, a.batch, a.hidden, a.dtype_bytes});
}

Volume AllGather(int ranks, int64_t bytes) {
  SF_CHECK_GE(ranks, 1);
  SF_CHECK_GE(bytes, 0);
  // Around the ring a rank passes on every share but the one that its successor had at the start.
  return {bytes - SmallestShare(bytes, ranks), Product({ranks - 1, bytes})};
}

Volume ReduceScatter(int ranks, int64_t bytes) { return AllGather(ranks, bytes); }

Volume AllReduce(int ranks, int64_t bytes) {
  const Volume half = AllGather(ranks, bytes);
  return {Sum({half.per_rank, half.per_rank}), Sum({half.total, half.total})};
}

Volume AllToAll(int ranks, int64_t bytes) {
  SF_CHECK_GE(ranks, 1);
  SF_CHECK_GE(bytes, 0);
  Volume volume;
  for (int r = 0; r < ranks; ++r) {
    const int64_t own = ShareOf(bytes, ranks, r).size();
    const int64_t sent = own - ShareOf(own, ranks, r).size();
    volume.per_rank = std::max(volume.per_rank, sent);
    volume.total += sent;
  }
  return volume;
}

std::string_view NameOf(Collective collective) {
  switch (collective) {
    case kNone: return "none";
    case kAllReduce: return "all_reduce";
    case kAllGather: return "all_gather";
    case kReduceScatter: return "reduce_scatter";
  }
  SF_CHECK(false);
  return "";
}

int UnitsOf(Collective collective) {
  return collective == kNone ? 0 : collective == kAllReduce ? 2 : 1;
}

std::span<const TpBoundary> TpBoundaries(TpForm form) {
  switch (form) {
    case TpForm::kTp: return kTpBoundaries;
    case TpForm::kTpSp:
      return std::span(kTpSpBoundaries).first(std::size(kTpSpBoundaries) - kRebuilds);
    case TpForm::kTpSpRebuild: return kTpSpBoundaries;
  }
  SF_CHECK(false);
  return {};
}

TpUnits UnitsOf(TpForm form) {
  TpUnits units;
  for (const TpBoundary& boundary : TpBoundaries(form)) {
    units.forward += UnitsOf(boundary.forward);
    units.backward += UnitsOf(boundary.backward);
  }
  return units;
}

TpBytes TpLayerBytes(TpForm form, int ranks, int64_t activation_bytes) {
  const TpUnits units = UnitsOf(form);
  const int64_t unit = AllGather(ranks, activation_bytes).per_rank;
  return {Product({units.forward, unit}), Product({units.backward, unit}),
          Product({units.both(), unit})};
}

PpTraffic PpStepBytes(int stages, int64_t activation_bytes) {
  SF_CHECK_GE(stages, 1);
  return {stages - 1, activation_bytes, Product({stages - 1, activation_bytes})};
}

int64_t PpSliceBytes(const Activation& a, int parts) {
  const int64_t tokens = Product({a.seq, a.batch});
  return Product({LargestShare(tokens, parts), a.hidden, a.dtype_bytes});
}

int64_t KvBytesPerToken(const KvShape& shape) {
  return Product({2, shape.layers, shape.kv_heads, shape.head_dim, shape.dtype_bytes});
}

int64_t KvBytesPerToken(const MlaShape& shape) {
  return Product({shape.layers, Sum({shape.kv_rank, shape.rope_dim}), shape.dtype_bytes});
}

int64_t HandoffBytes(int64_t bytes_per_token, int64_t tokens) {
  return Product({bytes_per_token, tokens});
}

double TransferMs(int64_t bytes, double bandwidth_gb_s, double fixed_ms) {
  SF_CHECK(bandwidth_gb_s > 0);
  return fixed_ms + static_cast<double>(bytes) / (bandwidth_gb_s * 1e6);
}

int64_t CpKvBytes(const CpShape& shape) { return KvRows(shape, shape.seq, shape.kv_heads); }

CpTraffic CpAllGather(const CpShape& shape, int ranks) {
  const int64_t most = shape.seq - SmallestShare(shape.seq, ranks);
  return {.bytes = {KvRows(shape, most, shape.kv_heads), Product({ranks - 1, CpKvBytes(shape)})},
          .rounds = ranks - 1,
          .kv_peak_bytes = CpKvBytes(shape)};
}

CpTraffic CpRing(const CpShape& shape, int ranks) {
  CpTraffic traffic = CpAllGather(shape, ranks);
  const int64_t blocks = std::min<int64_t>(ranks, 2) * LargestShare(shape.seq, ranks);
  traffic.kv_peak_bytes = KvRows(shape, std::min(blocks, shape.seq), shape.kv_heads);
  return traffic;
}

CpTraffic CpUlysses(const CpShape& shape, int ranks) {
  CpTraffic traffic{.bytes = UlyssesVolume(shape, ranks, shape.seq), .rounds = ranks > 1 ? 2 : 0};
  for (int r = 0; r < ranks; ++r) {
    traffic.kv_peak_bytes =
        std::max(traffic.kv_peak_bytes, KvRows(shape, shape.seq, HeadsOf(shape, ranks, r).kv));
  }
  return traffic;
}

CpTraffic CpUlyssesRing(const CpShape& shape, int ulysses, int ring) {
  CpTraffic traffic{.rounds = (ulysses > 1 ? 2 : 0) + ring - 1};
  int64_t kv_heads = 0, kv_heads_most = 0;  // over the ranks of an a2a group
  for (int u = 0; u < ulysses; ++u) {
    const int64_t kv = HeadsOf(shape, ulysses, u).kv;
    kv_heads += kv;
    kv_heads_most = std::max(kv_heads_most, kv);
  }
  for (int r = 0; r < ring; ++r) {
    const Volume group = UlyssesVolume(shape, ulysses, ShareOf(shape.seq, ring, r).size());
    traffic.bytes.per_rank = std::max(traffic.bytes.per_rank, group.per_rank);
    traffic.bytes.total = Sum({traffic.bytes.total, group.total});
  }
  const int64_t most = shape.seq - SmallestShare(shape.seq, ring);
  traffic.bytes.per_rank = Sum({traffic.bytes.per_rank, KvRows(shape, most, kv_heads_most)});
  traffic.bytes.total =
      Sum({traffic.bytes.total, Product({ring - 1, KvRows(shape, shape.seq, kv_heads)})});
  const int64_t blocks = std::min<int64_t>(ring, 2) * LargestShare(shape.seq, ring);
  traffic.kv_peak_bytes = KvRows(shape, std::min(blocks, shape.seq), kv_heads_most);
  return traffic;
}

CpTraffic CpPassQ(const CpShape& shape, int ranks, int64_t query_tokens, int64_t partial_bytes) {
  SF_CHECK_GE(ranks, 1);
  const int64_t query = Product({shape.batch, shape.heads, shape.head_dim, shape.dtype_bytes});
  const int64_t partial =
      Product({shape.batch, shape.heads, Sum({shape.head_dim, 2}), partial_bytes});
  CpTraffic traffic{.rounds = ranks > 1 ? 2 : 0};
  for (int r = 0; r < ranks; ++r) {
    const int64_t own = ShareOf(query_tokens, ranks, r).size();
    const int64_t sent = Sum(
        {Product({own, ranks - 1, query}), ranks > 1 ? Product({query_tokens - own, partial}) : 0});
    traffic.bytes.per_rank = std::max(traffic.bytes.per_rank, sent);
    traffic.bytes.total = Sum({traffic.bytes.total, sent});
  }
  traffic.kv_peak_bytes = KvRows(shape, LargestShare(shape.seq, ranks), shape.kv_heads);
  return traffic;
}

ModeScale ScaleOf(Mode mode, const ModelScale& m) {
  SF_CHECK_GE(m.machines, 1);
  const int64_t row = Product({m.hidden, m.dtype_bytes});
  const int64_t activation = Product({m.tokens, row});
  const auto share = [&](int64_t rows) {
    const int64_t up = rows / m.machines + (rows % m.machines != 0);
    return Product({up, row});
  };
  switch (mode) {
    case Mode::kTp:
      return {Occasion::kStep, Product({2, m.layers}), activation, Product({m.layers, activation})};
    case Mode::kPp:
      return {Occasion::kStep, m.stages - 1, activation, Product({m.stages, activation})};
    case Mode::kCp:
      return {Occasion::kRequest, Product({m.machines - 1, m.layers}), share(m.tokens),
              Product({m.layers, activation})};
    case Mode::kEp:
      return {Occasion::kStep, Product({2, m.moe_layers}), share(Product({m.top_k, m.tokens})),
              Product({m.moe_layers, m.top_k, activation})};
    case Mode::kHandoff:
      return {Occasion::kRequest, 1, Product({m.layers, activation}),
              Product({m.layers, activation})};
  }
  SF_CHECK(false);
  return {};
}

}  // namespace sixfold::formulas
