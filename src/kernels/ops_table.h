// The arithmetic of ops.h for one ISA: straight loops over one row or one piece of attention, without threads. ops.cc
// and attention.cc cut the work and call them. All tables give equal bits.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/numerics.h"

namespace sixfold {

struct OpsTable {
  // Sum of x[i]^2 in lanes i mod 64 (ops.h, RmsNorm).
  float (*sum_squares)(const float* x, int64_t n);
  // out[i] = (x[i] * factor) * weight[i]; out may be x.
  void (*scale_by_weight)(const float* x, int64_t n, float factor, const float* weight, float* out);
  // (x[i], x[i + half]) = (a cos - b sin, b cos + a sin), each product rounded.
  void (*rotate)(float* x, int64_t half, const float* cos, const float* sin);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*clamped_swiglu)(const float* gate, const float* up, int64_t n, float alpha, float limit, float* out);
  void (*add)(float* x, const float* y, int64_t n);
  // x[i] = fma(factor, y[i], x[i]).
  void (*add_scaled)(float* x, float factor, const float* y, int64_t n);
  void (*clamp)(float* x, int64_t n, float limit);
  // In place, as to_bf16 rounds.
  void (*round_bf16)(float* x, int64_t n);
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
  // Largest x[i] that is not NaN; -inf if there is none.
  float (*max)(const float* x, int64_t n);
  // Sum of ExpF(x[i] - max) in lanes i mod 64, merged as in sum_squares.
  float (*sum_exp)(const float* x, int64_t n, float max);
  // out[i] = ExpF((x[i] - max) * factor); out may be x.
  void (*exp_scaled)(const float* x, int64_t n, float max, float factor, float* out);
  // First i with x[i] == value; n if there is none.
  int64_t (*find)(const float* x, int64_t n, float value);

  // Floats of scratch that attend and merge need for these arguments.
  int64_t (*attention_scratch)(const AttentionShape& shape);
  // Computes the lanes and chunks of one piece. scratch: 64-byte aligned.
  void (*attend)(const AttentionPiece& piece, float* scratch);
  // Merges the partials of the nodes that attend left, and finishes piece's lanes.
  void (*merge)(const AttentionPiece& piece, const AttentionPartials& partials, float* scratch);
  // left = merge(left, right) of [lanes][PartialStride].
  void (*merge_partials)(float* left, const float* right, int64_t lanes, int v_dim);
};

const OpsTable& ScalarOps();
#if defined(__x86_64__)
const OpsTable& Avx2Ops();
const OpsTable& Avx512Ops();
#endif

}  // namespace sixfold
