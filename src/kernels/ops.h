// Everything in a layer that is not a matrix product: norms, rotation, activation functions, attention over pages, and
// the vocabulary reductions. Equal bits on every ISA, for one row as among many (kernels/numerics.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "kernels/numerics.h"

namespace sixfold {

inline constexpr int kPageTokens = 16;  // positions in one K/V page

// Own transcendental functions, the same bits on every machine. Scalar forms; the ops use vector forms equal to them.
// Relative error of a few 1e-7.
float ExpF(float x);   // exp; 0 below -87.3, +inf above 88.7, NaN stays NaN
float LogF(float x);   // natural logarithm, x > 0
float SiluF(float x);  // x / (1 + exp(-x))
// Double precision (error below 1e-14 relative), for tables made at load: no libm, since libm picks code by CPU.
double ExpD(double x);
double LogD(double x);
double SinD(double x);  // |x| < 2^30
double CosD(double x);

// K and V pages of one layer: page b of kv head h starts at base + (b * kv_heads + h) * 16 * dim elements,
// and holds [16 positions][dim].
// Under latent attention (MLA) a value is the first v_dim elements of its key and is not stored again: v_in_k, and v is k.
struct KvLayerView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  bool bf16 = true;  // element type: bf16, else fp32
  int kv_heads = 0;
  int k_dim = 0;
  int v_dim = 0;
  bool v_in_k = false;

  int v_stride() const { return v_in_k ? k_dim : v_dim; }  // elements from the value of one position to the next
};

// The rows of one request in a step.
struct AttentionSequence {
  int64_t first_row = 0;  // in q, k, v and out
  int64_t rows = 0;
  int64_t first_position = 0;      // absolute position of the first row
  // Page numbers of positions from 0 to the last row's. Those that no row sees (before a window) are not looked at.
  const int32_t* pages = nullptr;
  int64_t position_step = 1;  // from one row to the next; more than 1: rows dealt out in turn over ranks

  int64_t PositionOf(int64_t row) const { return first_position + row * position_step; }
};

struct AttentionArgs {
  const float* q = nullptr;  // [rows, heads, k_dim], rotated
  float* out = nullptr;      // [rows, heads, v_dim]
  int heads = 0;
  // Query head h reads kv head (h + group_offset) / kv_group. A rank may hold a part of the first and of the last group.
  int kv_group = 0;          // query heads that share a K/V head; 0: heads / kv_heads
  int group_offset = 0;      // heads of the first group that this rank lacks
  KvLayerView kv;            // already holds this step's rows
  float scale = 1.0f;
  int chunk = 256;     // keys in a leaf of the softmax tree: a power of two, 16 to 512
  int64_t window = 0;  // a row at position p sees keys j with p - window < j <= p; 0: all j <= p
  // [heads], or null: the logit of one more key of each head, which every row sees and whose value is zero (attention sink).
  const float* sinks = nullptr;
  std::span<const AttentionSequence> sequences;
};

// One node of the chunk tree (Ops::Attention) for rows of one sequence: what they get from the keys of chunks
// [chunk_begin, chunk_end), as far as each row sees them. The range is a node, possibly clipped at its ends to the chunks
// that exist for these rows: it may begin where the first row's window does and end with the last row's chunk.
//
// A partial is [v_dim + 2]: O[v_dim], m, l; l = 0 says that the row sees no key of the node, and then O and m mean nothing.
// Lanes are ordered by kv head, then row, then query head of the group.
struct AttentionNode {
  AttentionSequence rows;  // first_row in args.q; of pages only those of the node's chunks are looked at
  int64_t chunk_begin = 0, chunk_end = 0;
  float* partials = nullptr;  // [PartialLanes][PartialStride]
};
inline int64_t PartialLanes(int64_t rows, int heads) { return rows * heads; }
inline int64_t PartialStride(int v_dim) { return int64_t{v_dim} + 2; }  // floats

// How the outputs of a mixture of experts become one row a token.
struct CombineArgs {
  float* slots = nullptr;            // [rows * top_k, n] expert outputs in any order; rounded in place if asked
  const int32_t* slot_place = nullptr;  // [rows, top_k]: where slot s of a row lies in `slots`
  const float* weights = nullptr;    // [rows, top_k]
  int64_t rows = 0;
  int top_k = 0;
  int64_t n = 0;
  enum class Rounding : uint8_t { kNone, kBF16 } rounding = Rounding::kNone;  // of each slot, before weighting
  float* out = nullptr;              // [rows, n]
};

// Memory that Ops::Attention and AttentionNodes keep between calls, when no call has more than these. A node counts as a
// sequence, and its rows as rows of the call.
struct AttentionNeeds {
  int threads = 1;
  int chunk = 256;
  int heads = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  int64_t rows = 0, sequences = 0;  // of a call
  int64_t positions = 0;            // of a sequence
};
int64_t AttentionBytes(Isa isa, const AttentionNeeds& needs);

// Thread rule: one step thread; the work is split over the pool by head and row, never inside a dot product.
class Ops {
 public:
  Ops(Isa isa, ThreadPool& pool);
  ~Ops();

  // out[r][i] = x[r][i] / sqrt(mean(x[r]^2) + eps) * weight[i]. Sum of squares in lanes i mod 64, fma chains,
  // then ((0+1)+(2+3)) over the four 16-lane chains and a halving tree. out may be x. Row r at x + r * x_stride.
  void RmsNorm(const float* x, int64_t x_stride, int64_t rows, int64_t n, const float* weight, float eps, float* out,
               int64_t out_stride);
  // The same over several heads as one vector (OLMoE): each head's sum as above, then a binary tree over heads. In two
  // parts, since ranks may hold some of the heads each: sums [rows, heads] of x [rows, heads, head_dim]; then the scaling of
  // `heads` of them, with the sums of all `heads_total` of the vector and the weights of these heads.
  void HeadSquares(const float* x, int64_t rows, int heads, int head_dim, float* sums);
  struct HeadScaling {
    int heads = 0, heads_total = 0, head_dim = 0;
    const float* sums = nullptr;    // [rows, heads_total]
    const float* weight = nullptr;  // [heads, head_dim]
    float eps = 0;
  };
  void ScaleHeads(float* x, int64_t rows, const HeadScaling& scaling);
  // Rotates the two halves of the first `rotary_dim` of each head. cos, sin: [max_position][rotary_dim / 2].
  void Rope(float* x, int64_t x_stride, int64_t rows, int heads, int head_dim, int rotary_dim, const int32_t* positions,
            const float* cos, const float* sin);
  // out[i] = silu(gate[i]) * up[i] for a [rows, n] matrix; out may be gate.
  void SiluMul(const float* gate, const float* up, int64_t count, float* out);
  // GPT-OSS's activation, for a [rows, n] matrix: g = min(gate, limit), u = up clamped to [-limit, limit],
  // out = (u + 1) * (g / (1 + ExpF(-(g * alpha)))). NaN stays NaN. out may be gate.
  struct ClampedSwiGlu {
    float alpha = 0, limit = 0;
  };
  void ClampedSwiGluMul(const float* gate, const float* up, int64_t count, const ClampedSwiGlu& form, float* out);
  // x += y, and x[r] += bias for each row.
  void Add(float* x, const float* y, int64_t count);
  void AddBias(float* x, int64_t x_stride, int64_t rows, int64_t n, const float* bias);
  // out[r] = sum over slots s, ascending, of weights[r][s] * slots[slot_place[r][s]]: an fma chain from +0.
  void Combine(const CombineArgs& args);
  // Rounding to bf16 as Combine and the products do it, one vector after the other.
  void RoundBF16(float* x, int64_t n);
  // Vectors x[rows[i]] [n] one after the other, as fp32 or rounded to bf16; and n such elements as fp32 again.
  void GatherRows(const float* x, int64_t n, std::span<const int32_t> rows, bool bf16, std::byte* out);
  void Widen(const std::byte* elements, int64_t n, bool bf16, float* out);
  // Clamps to [-limit, limit] (OLMoE's clip_qkv).
  void Clamp(float* x, int64_t x_stride, int64_t rows, int64_t n, float limit);

  // Stores rows of k [rows, kv_heads, k_dim] and v [rows, kv_heads, v_dim] into pages, rounding to bf16 if kv.bf16. Without
  // values of their own (kv.v_in_k) v is not read.
  void WriteKv(const float* k, const float* v, std::span<const AttentionSequence> sequences, const KvLayerView& kv);
  // Chunked softmax attention. For each row and head and each absolute chunk c with a visible key:
  //   s_j = dot(q, k_j) * scale (numerics.h order over k_dim; q rounded to bf16 if kv.bf16)
  //   m = max s_j;  p_j = ExpF(s_j - m), rounded to bf16 if kv.bf16
  //   l = dot(p, ones), O_d = dot(p, v_d): numerics.h order over keys in blocks of 32 aligned to the chunk; keys that
  //   are not visible are skipped, as are blocks without a visible key, which equals a zero p on finite values.
  // Chunks merge in the binary tree over c (node(j, i) = chunks [i*2^j, (i+1)*2^j), an absent or empty child: copy the
  // other): m = max, a = ExpF(ml - m), b = ExpF(mr - m), l = fma(ll, a, lr * b), O = fma(Ol, a, Or * b).
  // out = O / l; with a sink s, which is met once, after the root: M = max(m, s), a = ExpF(m - M),
  // out = (O * a) / fma(l, a, ExpF(s - M)). Slots of invisible positions may hold anything. NaN in a visible one gives NaN.
  void Attention(const AttentionArgs& args);

  // The same in three steps, for keys that lie on several ranks: partials of nodes, merged as the tree says wherever they
  // meet, then finished. Any nodes that together hold every chunk with a visible key once give Attention's bits: siblings
  // merge, and a node whose sibling has no such chunk is its own parent. Of args, `out`, `sequences` and `sinks` are unused.
  void AttentionNodes(const AttentionArgs& args, std::span<const AttentionNode> nodes);
  // left = merge(left, right), lane by lane; `left` holds the earlier keys. l = 0 is the identity.
  void MergePartials(float* left, const float* right, int64_t lanes, int v_dim);
  // Meets the sinks, divides, and stores the rows' outputs to args.out. Looks at no page.
  void FinishPartials(const AttentionArgs& args, const AttentionSequence& rows, const float* partials);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reductions over one row of logits [vocab], in 64 fixed chunks of ceil(vocab/64) merged by a binary tree; a chunk is
// summed in lanes i mod 64 as in RmsNorm. Logits of -inf count nothing; if all are, max is -inf and log_sum 0.
struct LogSoftmaxStats {
  float max = 0;      // largest logit
  float log_sum = 0;  // log of sum exp(logit - max); log p = logit - max - log_sum
};
LogSoftmaxStats LogSoftmax(std::span<const float> logits);
// out[i] = ExpF((x[i] - max) * factor): weights of sampling. out has x's size and may be x.
void ExpScaled(std::span<const float> x, float max, float factor, std::span<float> out);
// Index of the largest logit; the lowest index wins ties; NaN is never chosen unless all are NaN (then 0).
int32_t ArgMax(std::span<const float> logits);

}  // namespace sixfold
