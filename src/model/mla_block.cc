#include "model/mla_block.h"

#include <algorithm>

#include "model/layer_steps.h"
#include "model/rope.h"

namespace sixfold {

namespace {

// The reference leaves these two norms at their class's eps, whatever rms_norm_eps says.
constexpr float kLatentNormEps = 1e-6f;

// q [rows, heads, nope_dim + rope_dim], not yet rotated, and latent [rows, kv_rank + rope_dim] of the prepared input.
void Project(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  c.matmul.Prepare(s.normed.data(), c.rows, c.config.hidden, w.kv_a.leaves, c.act, {}, &s.a);
  const int64_t q_rank = c.config.latent.q_rank;
  if (q_rank == 0) {
    const MatMulTask both[] = {Product(s.a, w.q, &s.q), Product(s.a, w.kv_a, &s.latent)};
    c.matmul.Run(both);
  } else {
    const MatMulTask narrow[] = {Product(s.a, w.q_a, &s.q_narrow), Product(s.a, w.kv_a, &s.latent)};
    c.matmul.Run(narrow);
    AddBias(c, &s.q_narrow, c.rows, w.q_a_bias);
    c.ops.RmsNorm(s.q_narrow.data(), q_rank, c.rows, q_rank, w.q_a_norm.data(), kLatentNormEps, s.q_narrow.data(), q_rank);
    c.matmul.Prepare(s.q_narrow.data(), c.rows, q_rank, w.q.leaves, c.act, {}, &s.a);
    const MatMulTask wide = Product(s.a, w.q, &s.q);
    c.matmul.Run({&wide, 1});
  }
  AddBias(c, &s.latent, c.rows, w.kv_a_bias);
}

// One product a head: out [rows, out_stride] gets, at head h's `out_width`, the product of in's part of that head.
struct HeadProducts {
  const std::vector<float>& in;  // [rows, heads, in_width]
  int64_t in_width = 0;
  const std::vector<PackedMatrix>& weights;  // [heads]
  std::vector<float>& out;                   // [rows, heads, out_width]
  int64_t out_width = 0;
};

void RunHeads(ForwardContext& c, const HeadProducts& p) {
  ForwardScratch& s = c.s;
  const auto heads = static_cast<int64_t>(p.weights.size());
  p.out.resize(c.rows * heads * p.out_width);
  if (c.rows == 0) return;
  s.a_heads.resize(heads);
  s.tasks.clear();
  for (int64_t h = 0; h < heads; ++h) {
    const PackedMatrix& w = p.weights[h];
    c.matmul.Prepare(p.in.data() + h * p.in_width, c.rows, heads * p.in_width, w.leaves, c.act, {}, &s.a_heads[h]);
    s.tasks.push_back({&s.a_heads[h], &w, p.out.data() + h * p.out_width, heads * p.out_width});
  }
  c.matmul.Run(s.tasks);
}

// The last rope_dim of every `width` elements of x [rows, count, width], in place.
void Rotate(ForwardContext& c, float* x, int64_t count, int width) {
  const int rope = c.config.latent.rope_dim;
  if (c.rows == 0) return;
  c.ops.Rope(x + width - rope, count * width, c.rows, static_cast<int>(count), width, rope, c.s.row_numbers.data(),
             c.s.cos.data(), c.s.sin.data());
}

// absorbed [rows, heads, kv_rank + rope_dim]: what a query meets cached rows with. Its first part is q's nope part times K's
// half of kv_b, its second q's rotated part.
void AbsorbQueries(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  const LatentConfig& m = c.config.latent;
  const int64_t heads = c.own.heads.size(), k_dim = c.config.k_dim(), q_dim = c.config.head_dim;
  Rotate(c, s.q.data(), heads, static_cast<int>(q_dim));
  RunHeads(c, {.in = s.q, .in_width = q_dim, .weights = w.absorb_k, .out = s.absorbed, .out_width = k_dim});
  for (int64_t i = 0; i < c.rows * heads; ++i) {
    std::copy_n(&s.q[i * q_dim + m.nope_dim], m.rope_dim, &s.absorbed[i * k_dim + m.kv_rank]);
  }
}

}  // namespace

Status MlaBlock(ForwardContext& c, int layer, KvStorage& kv) {
  ForwardScratch& s = c.s;
  const LatentConfig& m = c.config.latent;
  const auto local = static_cast<int>(layer - c.own.layers.begin);
  const LayerWeights& w = c.weights.layers[local];
  const int64_t heads = c.own.heads.size(), k_dim = c.config.k_dim();
  SF_RETURN_IF_ERROR(Norm(c, w.attention_norm, trace::Phase::kAttentionGather));
  Project(c, w);
  c.ops.RmsNorm(s.latent.data(), k_dim, c.rows, m.kv_rank, w.kv_a_norm.data(), kLatentNormEps, s.latent.data(), k_dim);
  Rotate(c, s.latent.data(), 1, static_cast<int>(k_dim));
  AbsorbQueries(c, w);
  const KvLayerView pages = kv.Layer(local);
  SF_RETURN_IF_ERROR(WriteKeys(c, s.latent, nullptr, pages));
  s.attention.resize(c.rows * heads * m.kv_rank);
  SF_RETURN_IF_ERROR(Attend(c, {.q = s.absorbed.data(),
                   .out = s.attention.data(),
                   .heads = static_cast<int>(heads),
                   .kv_group = static_cast<int>(heads),
                   .kv = pages,
                   .scale = AttentionScale(c.config),
                   .chunk = c.attention_chunk,
                   .window = c.config.layers[layer].window,
                   .sequences = s.sequences}));
  RunHeads(c, {.in = s.attention, .in_width = m.kv_rank, .weights = w.absorb_v, .out = s.v, .out_width = m.v_dim});
  RunNodes(c, s.v, c.layout.output_cut(), w.o);
  return AddSum(c, c.layout.output_cut(), w.o_bias, trace::Phase::kAttentionSum);
}

}  // namespace sixfold
