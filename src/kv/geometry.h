// Shape and size of K/V memory: plain values, shared by the engine's storage, by admission and later by the planner.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace sixfold {

// A block is 16 consecutive absolute positions of one request in all layers of this rank: one page of K and one of V a
// layer, each [kv_heads][16][dim]. Under latent attention there are K pages only: V is a prefix of K (v_in_k).
struct KvGeometry {
  int layers = 0;
  int kv_heads = 0;  // on this rank
  int k_dim = 0;
  int v_dim = 0;
  bool bf16 = true;
  bool v_in_k = false;

  int64_t element_bytes() const { return bf16 ? 2 : 4; }
  int64_t k_page_bytes() const { return int64_t{kv_heads} * kPageTokens * k_dim * element_bytes(); }
  int64_t v_page_bytes() const { return v_in_k ? 0 : int64_t{kv_heads} * kPageTokens * v_dim * element_bytes(); }
  int64_t block_bytes() const { return layers * (k_page_bytes() + v_page_bytes()); }
};

// Blocks that hold `tokens` positions.
inline int64_t BlocksFor(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace sixfold
