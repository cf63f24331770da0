// What the layout needs to know of a model: sizes, and where its reductions may be cut. Made by model/shape.h from config
// and files; the planner can make one without either.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/numerics.h"

namespace sixfold {

struct ModelShape {
  int64_t hidden = 0;
  int64_t vocab = 0;
  int64_t intermediate = 0;         // dense FFN
  int64_t expert_intermediate = 0;  // one expert
  int64_t shared_intermediate = 0;  // the shared experts of a sparse layer together; 0: none
  int heads = 0, kv_heads = 0;
  int head_dim = 0;                 // of a head's output: what one query head feeds to the output projection
  int k_dim = 0, v_dim = 0;         // of a cached row of one K/V head; 0: head_dim
  bool v_in_k = false;              // the value is the first v_dim elements of the key (latent attention)
  int experts = 0, top_k = 0;
  std::vector<bool> sparse;         // [layers]: experts instead of a dense FFN
  std::vector<int64_t> windows;     // [layers] positions that a query sees at most; 0: all. Empty: all in every layer
  bool norm_across_heads = false;   // q and k are normalised as whole vectors (OLMoE)

  Numerics numerics = Numerics::kReproducible;
  // Where tp may cut the reductions after attention (bounds are whole heads), after the dense FFN, inside an expert and
  // inside the shared experts. In kReproducible these are the leaves of the tree that every layout adds in; in kFast the
  // smallest pieces that can be dealt, and each rank's share is summed as one.
  Leaves output_units, down_units, expert_down_units, shared_down_units;
  int kv_element_bytes = 2;
  int attention_chunk = 256;  // keys of a leaf of the softmax tree
  // Of a row on its way to an expert, and of an output on its way back.
  int dispatch_element_bytes = 2, combine_element_bytes = 2;

  int64_t window(int layer) const { return windows.empty() ? 0 : windows[layer]; }
  int layers() const { return static_cast<int>(sparse.size()); }
};

}  // namespace sixfold
