#include "kernels/testing/attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "base/thread_pool.h"
#include "kernels/math.h"

namespace sixfold {

AttentionCase::AttentionCase(const AttentionCaseShape& s, std::vector<AttentionRequest> r, uint32_t seed)
    : shape(s), requests(std::move(r)) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  int32_t total_pages = 3;  // some that nobody owns
  for (const AttentionRequest& request : requests) {
    rows += request.rows;
    total_pages += static_cast<int32_t>((request.context + request.rows + kPageTokens - 1) / kPageTokens);
  }
  std::vector<int32_t> order(total_pages);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), bits);
  q.resize(rows * s.heads * s.k_dim);
  for (float& value : q) value = normal(bits) * 1.5f;
  for (int h = 0; s.sinks && h < s.heads; ++h)
    sinks.push_back(h % 5 == 4 ? (h % 2 == 0 ? 30.0f : -200.0f) : 2.0f * normal(bits));
  const int64_t slots = int64_t{total_pages} * s.kv_heads * kPageTokens;
  k_pages.assign(slots * s.k_dim * Width(), std::byte{0xff});  // NaN in both formats
  v_pages.assign(slots * s.v_dim * Width(), std::byte{0xff});
  size_t taken = 0;
  for (const AttentionRequest& request : requests) {
    const int64_t length = request.context + request.rows;
    auto& table =
        pages.emplace_back(order.begin() + taken, order.begin() + taken + (length + kPageTokens - 1) / kPageTokens);
    taken += table.size();
    auto& key = k.emplace_back(length * s.kv_heads * s.k_dim);
    auto& value = v.emplace_back(length * s.kv_heads * s.v_dim);
    for (auto* matrix : {&key, &value})
      for (float& element : *matrix) element = s.bf16 ? RoundToBf16(normal(bits)) : normal(bits);
    for (int64_t i = 0; i < length * s.kv_heads; ++i) {
      const int64_t slot = Slot(table, i / s.kv_heads, static_cast<int>(i % s.kv_heads));
      Store(&key[i * s.k_dim], s.k_dim, slot, &k_pages);
      if (s.v_in_k) std::copy_n(&key[i * s.k_dim], s.v_dim, &value[i * s.v_dim]);
      Store(&value[i * s.v_dim], s.v_dim, slot, &v_pages);
    }
  }
}

void AttentionCase::Store(const float* from, int dim, int64_t slot, std::vector<std::byte>* to) const {
  for (int d = 0; d < dim; ++d) {
    std::byte* at = to->data() + (slot * dim + d) * Width();
    const uint16_t half = Bf16FromFloat(from[d]);
    if (shape.bf16)
      std::memcpy(at, &half, 2);
    else
      std::memcpy(at, &from[d], 4);
  }
}

AttentionArgs AttentionCase::Args(const std::vector<AttentionSequence>& sequences, float* out) {
  return {.q = q.data(),
          .out = out,
          .heads = shape.heads,
          .kv_group = shape.kv_group,
          .group_offset = shape.group_offset,
          .kv = {k_pages.data(), shape.v_in_k ? k_pages.data() : v_pages.data(), shape.bf16, shape.kv_heads,
                 shape.k_dim, shape.v_dim, shape.v_in_k},
          .scale = 1.0f / std::sqrt(static_cast<float>(shape.k_dim)),
          .chunk = shape.chunk,
          .window = shape.window,
          .sinks = shape.sinks ? sinks.data() : nullptr,
          .sequences = sequences};
}

std::vector<AttentionSequence> AttentionCase::Sequences() const {
  std::vector<AttentionSequence> sequences;
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    sequences.push_back({row, requests[i].rows, requests[i].context, pages[i].data()});
    row += requests[i].rows;
  }
  return sequences;
}

std::vector<float> AttentionCase::Run(Isa isa, int threads, const std::vector<AttentionSequence>& sequences) {
  ThreadPool pool(threads, SetFloatMode);
  Ops ops(isa, pool);
  std::vector<float> out(rows * shape.heads * shape.v_dim, -7.0f);
  ops.Attention(Args(sequences, out.data()));
  return out;
}

std::vector<Isa> IsasHere() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(DetectIsa()); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace sixfold
