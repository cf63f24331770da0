#include "kernels/ref/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/math.h"

namespace sixfold {
namespace {

float ElementAt(const std::byte* vector, bool bf16, int64_t i) {
  if (!bf16) return reinterpret_cast<const float*>(vector)[i];
  return FloatFromBf16(reinterpret_cast<const uint16_t*>(vector)[i]);
}

// The dot product of numerics.h over i in [first, last), blocks of 32 aligned to i = 0; a block without an i is
// skipped.
template <typename Left, typename Right>
float Dot(int64_t first, int64_t last, const Left& left, const Right& right) {
  float c = 0;
  for (int64_t block = first / 32 * 32; block < last; block += 32) {
    float chain[2] = {0, 0};  // even i, odd i
    for (int64_t i = std::max(first, block); i < std::min(last, block + 32); ++i)
      chain[i % 2] = std::fma(left(i), right(i), chain[i % 2]);
    c = c + (chain[0] + chain[1]);
  }
  return c;
}

// One leaf of one query: keys [first, last) into out = O[v_dim], m, l. score: [chunk].
void Leaf(const AttentionPiece& piece, const float* q, int64_t first, int64_t last, float* score, float* out) {
  const AttentionArgs& args = *piece.args;
  const KvLayerView& kv = args.kv;
  float m = -std::numeric_limits<float>::infinity();
  for (int64_t j = first; j < last; ++j) {
    const std::byte* key = KvAddress(piece, kv.k, kv.k_dim, j);
    float& s = score[j % args.chunk];
    s = Dot(
        0, kv.k_dim, [&](int64_t d) { return q[d]; }, [&](int64_t d) { return ElementAt(key, kv.bf16, d); });
    s *= args.scale;
    m = s > m ? s : m;
  }
  const int64_t chunk_start = first / args.chunk * args.chunk;
  const auto p = [&](int64_t i) { return score[i]; };
  for (int64_t j = first; j < last; ++j) {
    float& s = score[j - chunk_start];
    s = ExpF(s - m);
    if (kv.bf16) s = RoundToBf16(s);
  }
  for (int64_t d = 0; d < kv.v_dim; ++d) {
    out[d] = Dot(first - chunk_start, last - chunk_start, p,
                 [&](int64_t i) { return ElementAt(KvAddress(piece, kv.v, kv.v_stride(), chunk_start + i), kv.bf16, d); });
  }
  out[kv.v_dim] = m;
  out[kv.v_dim + 1] = Dot(first - chunk_start, last - chunk_start, p, [](int64_t) { return 1.0f; });
}

// out = merge(left, right), of which it may be either; l = 0 marks a side without keys.
void Merge(const float* left, const float* right, int v_dim, float* out) {
  if (left[v_dim + 1] == 0 || right[v_dim + 1] == 0) {
    const float* from = left[v_dim + 1] == 0 ? right : left;
    if (from != out) std::copy(from, from + v_dim + 2, out);
    return;
  }
  const float ml = left[v_dim], mr = right[v_dim];
  const float m = ml > mr ? ml : mr;
  const float a = ExpF(ml - m), b = ExpF(mr - m);
  for (int d = 0; d < v_dim; ++d) out[d] = std::fma(left[d], a, right[d] * b);
  out[v_dim + 1] = std::fma(left[v_dim + 1], a, right[v_dim + 1] * b);
  out[v_dim] = m;
}

void Finish(const AttentionPiece& piece, int64_t lane, const float* node) {
  const int v_dim = piece.args->kv.v_dim;
  if (piece.partial != nullptr) {
    std::copy(node, node + v_dim + 2, piece.partial + (lane - piece.lane_begin) * PartialStride(v_dim));
    return;
  }
  const int group = piece.group;
  const int64_t row = piece.sequence->first_row + lane / group;
  float* out = piece.args->out + (row * piece.args->heads + piece.first_head + lane % group) * v_dim;
  const float m = node[v_dim], l = node[v_dim + 1];
  if (piece.args->sinks == nullptr) {
    for (int d = 0; d < v_dim; ++d) out[d] = node[d] / l;
    return;
  }
  const float sink = SinkOf(piece, lane);
  const float max = m > sink ? m : sink;
  const float a = ExpF(m - max);
  const float total = std::fma(l, a, ExpF(sink - max));
  for (int d = 0; d < v_dim; ++d) out[d] = node[d] * a / total;
}

}  // namespace

int64_t RefAttentionScratch(const AttentionShape& shape) {
  return shape.k_dim + shape.chunk + (shape.tree_levels + 1) * PartialStride(shape.v_dim);
}

void RefAttend(const AttentionPiece& piece, float* scratch) {
  const AttentionArgs& args = *piece.args;
  const KvLayerView& kv = args.kv;
  const int64_t stride = PartialStride(kv.v_dim);
  float* q = scratch;
  float* score = q + kv.k_dim;
  float* nodes = score + args.chunk;
  const auto merge = [&](int left, int right) {
    float* to = nodes + right * stride;
    Merge(nodes + left * stride, to, kv.v_dim, to);
  };
  const int group = piece.group;
  for (int64_t lane = piece.lane_begin; lane < piece.lane_end; ++lane) {
    const int64_t row = lane / group;
    const float* from =
        args.q + ((piece.sequence->first_row + row) * args.heads + piece.first_head + lane % group) * kv.k_dim;
    for (int d = 0; d < kv.k_dim; ++d) q[d] = kv.bf16 ? RoundToBf16(from[d]) : from[d];
    const VisibleKeys visible = VisibleTo(piece, lane);
    ChunkTree tree(piece.tree_levels);
    for (int64_t c = piece.chunk_begin; c < piece.chunk_end; ++c) {
      const int64_t first = std::max(visible.first, c * args.chunk);
      const int64_t last = std::min(visible.last + 1, (c + 1) * args.chunk);
      if (first >= last) continue;
      Leaf(piece, q, first, last, score, nodes + tree.current() * stride);
      tree.Push(c, merge);
    }
    int root = tree.Root(merge);
    if (root < 0) {  // a node without a visible key for this query
      root = 0;
      std::fill(nodes, nodes + stride, 0.0f);
    }
    Finish(piece, lane, nodes + root * stride);
  }
}

void RefMergeNodes(const AttentionPiece& piece, const AttentionPartials& partials, float* scratch) {
  const int v_dim = piece.args->kv.v_dim;
  const int64_t stride = PartialStride(v_dim);
  const int64_t lanes = piece.lane_end - piece.lane_begin;
  const auto merge = [&](int left, int right) {
    float* to = scratch + right * stride;
    Merge(scratch + left * stride, to, v_dim, to);
  };
  for (int64_t lane = 0; lane < lanes; ++lane) {
    ChunkTree tree(piece.tree_levels);
    for (int64_t node = 0; node < partials.nodes; ++node) {
      const float* from = partials.data + (node * lanes + lane) * stride;
      std::copy(from, from + stride, scratch + tree.current() * stride);
      tree.Push(partials.first_node + node, merge);
    }
    Finish(piece, piece.lane_begin + lane, scratch + tree.Root(merge) * stride);
  }
}

void RefMergePartials(float* left, const float* right, int64_t lanes, int v_dim) {
  const int64_t stride = PartialStride(v_dim);
  for (int64_t lane = 0; lane < lanes; ++lane, left += stride, right += stride) Merge(left, right, v_dim, left);
}

}  // namespace sixfold
