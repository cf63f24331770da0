#include "model/attention_block.h"

#include <algorithm>
#include <cmath>

#include "model/layer_steps.h"
#include "model/mla_block.h"

namespace sixfold {

namespace {

// Norm over whole vectors whose heads are spread over the group: all sums of squares first. shares: [tp] heads of each.
Status NormWhole(ForwardContext& c, std::vector<float>* x, std::span<const Share> shares, int heads_total,
                 const std::vector<float>& weight) {
  ForwardScratch& s = c.s;
  const int dim = c.config.head_dim;
  const int heads = static_cast<int>(shares[c.own.tp].size());
  s.head_sums.resize(c.rows * heads_total);
  Bounds bounds = {0};
  for (const Share& share : shares) bounds.push_back(bounds.back() + share.size() * c.rows);
  s.all_head_sums.resize(bounds.back());
  c.ops.HeadSquares(x->data(), c.rows, heads, dim, s.all_head_sums.data() + bounds[c.own.tp]);
  if (c.comm.tp != nullptr) {
    CarryRows(c, trace::Phase::kNormSums, heads * kFloatBytes, bounds[c.own.tp] * kFloatBytes);
    SF_RETURN_IF_ERROR(c.comm.tp->AllGather(Times(bounds, kFloatBytes), BytesOf(s.all_head_sums)));
  }
  // A K/V head that several ranks hold comes several times, each time with the same bits.
  for (size_t m = 0; m < shares.size(); ++m) {
    const int64_t width = shares[m].size();
    for (int64_t r = 0; r < c.rows; ++r) {
      std::copy_n(&s.all_head_sums[bounds[m] + r * width], width, &s.head_sums[r * heads_total + shares[m].begin]);
    }
  }
  c.ops.ScaleHeads(x->data(), c.rows,
                   {.heads = heads,
                    .heads_total = heads_total,
                    .head_dim = dim,
                    .sums = s.head_sums.data(),
                    .weight = weight.data(),
                    .eps = c.config.norm_eps});
  return OkStatus();
}

Status NormQueriesAndKeys(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  const int dim = c.config.head_dim;
  if (c.config.qk_norm == QkNorm::kPerHead) {
    const int64_t heads = c.own.heads.size(), kv_heads = c.own.kv_heads.size();
    c.ops.RmsNorm(s.q.data(), dim, c.rows * heads, dim, w.q_norm.data(), c.config.norm_eps, s.q.data(), dim);
    c.ops.RmsNorm(s.k.data(), dim, c.rows * kv_heads, dim, w.k_norm.data(), c.config.norm_eps, s.k.data(), dim);
  } else if (c.config.qk_norm == QkNorm::kWholeVector) {
    std::vector<Share> heads, kv_heads;
    for (int t = 0; t < c.layout.tp(); ++t) {
      const RankShard shard = c.layout.Shard(c.layout.RankAt({.tp = t}));
      heads.push_back(shard.heads);
      kv_heads.push_back(shard.kv_heads);
    }
    SF_RETURN_IF_ERROR(NormWhole(c, &s.q, heads, c.config.heads, w.q_norm));
    SF_RETURN_IF_ERROR(NormWhole(c, &s.k, kv_heads, c.config.kv_heads, w.k_norm));
  }
  return OkStatus();
}

void Clip(ForwardContext& c, std::vector<float>* x) {
  if (c.config.clip_qkv <= 0 || c.rows == 0) return;
  const int64_t n = static_cast<int64_t>(x->size()) / c.rows;
  c.ops.Clamp(x->data(), n, c.rows, n, c.config.clip_qkv);
}

void Rotate(ForwardContext& c, std::vector<float>* x, int64_t heads) {
  const int dim = c.config.head_dim;
  c.ops.Rope(x->data(), heads * dim, c.rows, static_cast<int>(heads), dim, dim, c.s.row_numbers.data(), c.s.cos.data(),
             c.s.sin.data());
}

}  // namespace

Status AttentionBlock(ForwardContext& c, int layer, KvStorage& kv) {
  if (c.config.latent.used()) return MlaBlock(c, layer, kv);
  ForwardScratch& s = c.s;
  const auto local = static_cast<int>(layer - c.own.layers.begin);
  const LayerWeights& w = c.weights.layers[local];
  SF_RETURN_IF_ERROR(Norm(c, w.attention_norm, trace::Phase::kAttentionGather));
  c.matmul.Prepare(s.normed.data(), c.rows, c.config.hidden, w.q.leaves, c.act, {}, &s.a);
  const MatMulTask qkv[] = {Product(s.a, w.q, &s.q), Product(s.a, w.k, &s.k), Product(s.a, w.v, &s.v)};
  c.matmul.Run(qkv);
  AddBias(c, &s.q, c.rows, w.q_bias);
  AddBias(c, &s.k, c.rows, w.k_bias);
  AddBias(c, &s.v, c.rows, w.v_bias);
  SF_RETURN_IF_ERROR(NormQueriesAndKeys(c, w));
  Clip(c, &s.q);
  Clip(c, &s.k);
  Clip(c, &s.v);
  Rotate(c, &s.q, c.own.heads.size());
  Rotate(c, &s.k, c.own.kv_heads.size());
  const KvLayerView pages = kv.Layer(local);
  SF_RETURN_IF_ERROR(WriteKeys(c, s.k, &s.v, pages));
  s.attention.resize(s.q.size());
  const int group = c.config.heads / c.config.kv_heads;
  SF_RETURN_IF_ERROR(Attend(c, {.q = s.q.data(),
                   .out = s.attention.data(),
                   .heads = static_cast<int>(c.own.heads.size()),
                   .kv_group = group,
                   .group_offset = static_cast<int>(c.own.heads.begin - c.own.kv_heads.begin * group),
                   .kv = pages,
                   .scale = 1.0f / std::sqrt(static_cast<float>(c.config.head_dim)),
                   .chunk = c.attention_chunk,
                   .window = c.config.layers[layer].window,
                   .sinks = w.sinks.empty() ? nullptr : w.sinks.data(),
                   .sequences = s.sequences}));
  RunNodes(c, s.attention, c.layout.output_cut(), w.o);
  return AddSum(c, c.layout.output_cut(), w.o_bias, trace::Phase::kAttentionSum);
}

}  // namespace sixfold
