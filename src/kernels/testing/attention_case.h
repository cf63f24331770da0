// Random queries, keys and values for tests of attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/numerics.h"
#include "kernels/ops.h"

namespace sixfold {

struct AttentionRequest {
  int64_t context = 0;  // positions before the step
  int64_t rows = 0;
};

struct AttentionCaseShape {
  int heads = 1, kv_heads = 1, k_dim = 64, v_dim = 64;
  bool bf16 = true;
  int chunk = 256;
  int64_t window = 0;
  bool v_in_k = false;
  bool sinks = false;
  int kv_group = 0, group_offset = 0;  // as in AttentionArgs
};

// Requests whose K and V lie in shuffled pages of one pool. Every slot that no position owns holds NaN.
struct AttentionCase {
  AttentionCase(const AttentionCaseShape& shape, std::vector<AttentionRequest> requests, uint32_t seed = 1);

  // The arguments that read this case; `sequences` is borrowed.
  AttentionArgs Args(const std::vector<AttentionSequence>& sequences, float* out);
  // Every request, rows one after the other.
  std::vector<AttentionSequence> Sequences() const;
  // Ops::Attention. [rows, heads, v_dim].
  std::vector<float> Run(Isa isa, int threads, const std::vector<AttentionSequence>& sequences);

  size_t Width() const { return shape.bf16 ? 2 : 4; }  // bytes of an element
  // Index of the vector of a position and K/V head in k_pages and v_pages.
  int64_t Slot(const std::vector<int32_t>& table, int64_t position, int head) const {
    return (int64_t{table[position / kPageTokens]} * shape.kv_heads + head) * kPageTokens + position % kPageTokens;
  }

  AttentionCaseShape shape;
  std::vector<AttentionRequest> requests;
  std::vector<float> q;                  // [rows, heads, k_dim]
  std::vector<float> sinks;              // [heads], if the shape has them: from far below the scores to far above
  std::vector<std::vector<float>> k, v;  // per request: [position][kv_head][dim], as stored
  std::vector<std::byte> k_pages, v_pages;
  std::vector<std::vector<int32_t>> pages;
  int64_t rows = 0;

 private:
  void Store(const float* from, int dim, int64_t slot, std::vector<std::byte>* to) const;
};

// Those that this machine runs.
std::vector<Isa> IsasHere();

bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace sixfold
