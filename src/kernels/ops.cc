#include "kernels/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/ops_table.h"

namespace sixfold {
namespace {

// Below this many elements the calling thread is done before the others are awake.
constexpr int64_t kInlineElements = 16384;
// A piece of fewer is done before it pays to hand it over.
constexpr int64_t kPieceElements = 4096;
constexpr int64_t kCacheLineFloats = 16;
constexpr int kVocabularyChunks = 64;

const OpsTable& TableOf(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kScalar: return ScalarOps();
    case Isa::kAvx2: return Avx2Ops();
    case Isa::kAvx512:
    case Isa::kAmx: return Avx512Ops();  // the tile registers serve matrix products only
  }
#endif
  return ScalarOps();
}

// For functions that no --isa reaches: all tables give equal bits.
const OpsTable& FastestTable() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return Avx512Ops();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2Ops();
#endif
  return ScalarOps();
}

// body(begin, end) over [0, count) in pieces that the team claims, cut at multiples of `unit`.
template <typename Body>
void Split(ThreadPool& pool, int64_t count, int64_t elements, int64_t unit, const Body& body) {
  if (pool.size() == 1 || elements < kInlineElements) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  const int64_t units = (count + unit - 1) / unit;
  const int64_t least = std::max<int64_t>(1, kPieceElements * units / elements);
  pool.ParallelFor(units, pool.GrainFor(units, least), [&](int64_t begin, int64_t end, int) {
    body(begin * unit, std::min(count, end * unit));
  });
}

float InverseRms(float sum_squares, int64_t n, float eps) {
  return 1.0f / std::sqrt(sum_squares / static_cast<float>(n) + eps);
}

// In place: node(level j, i) at value[i * 2^j].
template <typename T, typename Merge>
T TreeOf(T* value, int64_t count, const Merge& merge) {
  for (int64_t step = 1; step < count; step *= 2)
    for (int64_t i = 0; i + step < count; i += 2 * step) value[i] = merge(value[i], value[i + step]);
  return value[0];
}

}  // namespace

struct Ops::Impl {
  Impl(const OpsTable& table, ThreadPool& pool) : table(table), pool(pool), attention(table, pool) {}

  const OpsTable& table;
  ThreadPool& pool;
  AttentionRunner attention;
};

int64_t AttentionBytes(Isa isa, const AttentionNeeds& n) {
  const int64_t last_chunk = std::max<int64_t>(n.positions - 1, 0) / n.chunk;
  const int levels = static_cast<int>(std::bit_width(static_cast<uint64_t>(last_chunk))) + 1;
  const AttentionShape shape{.chunk = n.chunk,
                             .k_dim = n.k_dim,
                             .v_dim = n.v_dim,
                             .tree_levels = levels};
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const int64_t scratch = n.threads * TableOf(isa).attention_scratch(shape) * kFloat;
  // Tiles of 32 queries, or up to 12 single rows of a sequence; twice, since a list grows by doubling.
  const int64_t pieces = n.rows * n.heads / kMaxPieceLanes + 12 * std::min(n.rows, n.sequences) * n.kv_heads;
  // What is cut along the keys is cut into at most 12 nodes a thread.
  const int64_t nodes = 12 * n.threads;
  return scratch + 2 * (pieces + nodes) * static_cast<int64_t>(sizeof(AttentionPiece)) +
         nodes * kMaxPieceLanes * PartialStride(n.v_dim) * kFloat;
}

Ops::Ops(Isa isa, ThreadPool& pool) : impl_(std::make_unique<Impl>(TableOf(isa), pool)) {}
Ops::~Ops() = default;

void Ops::RmsNorm(const float* x, int64_t x_stride, int64_t rows, int64_t n, const float* weight, float eps, float* out,
                  int64_t out_stride) {
  const OpsTable& table = impl_->table;
  Split(impl_->pool, rows, rows * n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = x + r * x_stride;
      const float factor = InverseRms(table.sum_squares(row, n), n, eps);
      table.scale_by_weight(row, n, factor, weight, out + r * out_stride);
    }
  });
}

void Ops::HeadSquares(const float* x, int64_t rows, int heads, int head_dim, float* sums) {
  const OpsTable& table = impl_->table;
  Split(impl_->pool, rows, rows * heads * head_dim, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * heads; i < end * heads; ++i) sums[i] = table.sum_squares(x + i * head_dim, head_dim);
  });
}

void Ops::ScaleHeads(float* x, int64_t rows, const HeadScaling& s) {
  const OpsTable& table = impl_->table;
  const int64_t n = int64_t{s.heads} * s.head_dim;
  const int64_t n_total = int64_t{s.heads_total} * s.head_dim;
  Split(impl_->pool, rows, rows * n, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> tree(s.heads_total);
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(s.sums + r * s.heads_total, s.heads_total, tree.begin());
      const float total = TreeOf(tree.data(), s.heads_total, [](float a, float b) { return a + b; });
      table.scale_by_weight(x + r * n, n, InverseRms(total, n_total, s.eps), s.weight, x + r * n);
    }
  });
}

void Ops::Rope(float* x, int64_t x_stride, int64_t rows, int heads, int head_dim, int rotary_dim,
               const int32_t* positions, const float* cos, const float* sin) {
  const int64_t half = rotary_dim / 2;
  Split(impl_->pool, rows, rows * heads * rotary_dim, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int h = 0; h < heads; ++h)
        impl_->table.rotate(x + r * x_stride + int64_t{h} * head_dim, half, cos + positions[r] * half,
                            sin + positions[r] * half);
  });
}

void Ops::SiluMul(const float* gate, const float* up, int64_t count, float* out) {
  Split(impl_->pool, count, count, kCacheLineFloats,
        [&](int64_t begin, int64_t end) { impl_->table.silu_mul(gate + begin, up + begin, end - begin, out + begin); });
}

void Ops::ClampedSwiGluMul(const float* gate, const float* up, int64_t count, const ClampedSwiGlu& form, float* out) {
  Split(impl_->pool, count, count, kCacheLineFloats, [&](int64_t begin, int64_t end) {
    impl_->table.clamped_swiglu(gate + begin, up + begin, end - begin, form.alpha, form.limit, out + begin);
  });
}

void Ops::Add(float* x, const float* y, int64_t count) {
  Split(impl_->pool, count, count, kCacheLineFloats,
        [&](int64_t begin, int64_t end) { impl_->table.add(x + begin, y + begin, end - begin); });
}

void Ops::AddBias(float* x, int64_t x_stride, int64_t rows, int64_t n, const float* bias) {
  Split(impl_->pool, rows, rows * n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) impl_->table.add(x + r * x_stride, bias, n);
  });
}

void Ops::RoundBF16(float* x, int64_t n) {
  Split(impl_->pool, n, n, kCacheLineFloats, [&](int64_t begin, int64_t end) { impl_->table.round_bf16(x + begin, end - begin); });
}

void Ops::GatherRows(const float* x, int64_t n, std::span<const int32_t> rows, bool bf16, std::byte* out) {
  const auto count = static_cast<int64_t>(rows.size());
  Split(impl_->pool, count, count * n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* from = x + rows[i] * n;
      if (bf16) {
        impl_->table.to_bf16(from, n, reinterpret_cast<uint16_t*>(out) + i * n);
      } else {
        std::copy_n(from, n, reinterpret_cast<float*>(out) + i * n);
      }
    }
  });
}

void Ops::Widen(const std::byte* elements, int64_t n, bool bf16, float* out) {
  Split(impl_->pool, n, n, kCacheLineFloats, [&](int64_t begin, int64_t end) {
    if (!bf16) {
      std::copy(reinterpret_cast<const float*>(elements) + begin, reinterpret_cast<const float*>(elements) + end, out + begin);
      return;
    }
    const auto* bits = reinterpret_cast<const uint16_t*>(elements);
    for (int64_t i = begin; i < end; ++i) out[i] = std::bit_cast<float>(uint32_t{bits[i]} << 16);
  });
}

void Ops::Combine(const CombineArgs& a) {
  const OpsTable& table = impl_->table;
  Split(impl_->pool, a.rows, a.rows * a.top_k * a.n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* out = a.out + r * a.n;
      std::fill_n(out, a.n, 0.0f);
      for (int64_t i = r * a.top_k; i < (r + 1) * a.top_k; ++i) {
        float* slot = a.slots + int64_t{a.slot_place[i]} * a.n;
        if (a.rounding == CombineArgs::Rounding::kBF16) table.round_bf16(slot, a.n);
        table.add_scaled(out, a.weights[i], slot, a.n);
      }
    }
  });
}

void Ops::Clamp(float* x, int64_t x_stride, int64_t rows, int64_t n, float limit) {
  Split(impl_->pool, rows, rows * n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) impl_->table.clamp(x + r * x_stride, n, limit);
  });
}

void Ops::WriteKv(const float* k, const float* v, std::span<const AttentionSequence> sequences, const KvLayerView& kv) {
  const auto store = [&](const float* from, std::byte* base, int dim, int64_t kv_row) {
    if (kv.bf16)
      impl_->table.to_bf16(from, dim, reinterpret_cast<uint16_t*>(base) + kv_row * dim);
    else
      std::copy(from, from + dim, reinterpret_cast<float*>(base) + kv_row * dim);
  };
  for (const AttentionSequence& sequence : sequences) {
    Split(impl_->pool, sequence.rows, sequence.rows * kv.kv_heads * (kv.k_dim + kv.v_dim), 1,
          [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
              const int64_t position = sequence.PositionOf(r);
              const int64_t page = sequence.pages[position / kPageTokens];
              for (int h = 0; h < kv.kv_heads; ++h) {
                const int64_t from = (sequence.first_row + r) * kv.kv_heads + h;
                const int64_t to = (page * kv.kv_heads + h) * kPageTokens + position % kPageTokens;
                store(k + from * kv.k_dim, kv.k, kv.k_dim, to);
                if (!kv.v_in_k) store(v + from * kv.v_dim, kv.v, kv.v_dim, to);
              }
            }
          });
  }
}

void Ops::Attention(const AttentionArgs& args) { impl_->attention.Run(args); }

void Ops::AttentionNodes(const AttentionArgs& args, std::span<const AttentionNode> nodes) {
  impl_->attention.RunNodes(args, nodes);
}

void Ops::MergePartials(float* left, const float* right, int64_t lanes, int v_dim) {
  const OpsTable& table = impl_->table;
  const int64_t stride = PartialStride(v_dim);
  Split(impl_->pool, lanes, lanes * stride, 1, [&](int64_t begin, int64_t end) {
    table.merge_partials(left + begin * stride, right + begin * stride, end - begin, v_dim);
  });
}

void Ops::FinishPartials(const AttentionArgs& args, const AttentionSequence& rows, const float* partials) {
  impl_->attention.Finish(args, rows, partials);
}

LogSoftmaxStats LogSoftmax(std::span<const float> logits) {
  struct Node {
    float max, sum;  // sum 0: no logit above -inf
  };
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const OpsTable& table = FastestTable();
  const auto n = static_cast<int64_t>(logits.size());
  const int64_t width = (n + kVocabularyChunks - 1) / kVocabularyChunks;
  Node node[kVocabularyChunks];
  for (int c = 0; c < kVocabularyChunks; ++c) {
    const int64_t begin = std::min(n, c * width), end = std::min(n, begin + width);
    const float max = table.max(logits.data() + begin, end - begin);
    node[c] = {max, max == kLowest ? 0.0f : table.sum_exp(logits.data() + begin, end - begin, max)};
  }
  const Node root = TreeOf(node, kVocabularyChunks, [](const Node& left, const Node& right) {
    if (left.sum == 0) return right;
    if (right.sum == 0) return left;
    const float max = std::max(left.max, right.max);
    const float a = ExpF(left.max - max), b = ExpF(right.max - max);
    return Node{max, std::fma(left.sum, a, right.sum * b)};
  });
  return {.max = root.max, .log_sum = root.sum == 0 ? 0.0f : LogF(root.sum)};
}

void ExpScaled(std::span<const float> x, float max, float factor, std::span<float> out) {
  SF_CHECK_EQ(x.size(), out.size());
  FastestTable().exp_scaled(x.data(), static_cast<int64_t>(x.size()), max, factor, out.data());
}

int32_t ArgMax(std::span<const float> logits) {
  const OpsTable& table = FastestTable();
  const auto n = static_cast<int64_t>(logits.size());
  const int64_t index = table.find(logits.data(), n, table.max(logits.data(), n));
  return index < n ? static_cast<int32_t>(index) : 0;
}

}  // namespace sixfold
