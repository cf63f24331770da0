// The experts' arithmetic: rows in, this rank's parts of every slot's output out. Where rows come from and go to is
// expert_block's.
#pragma once

#include <cstdint>
#include <span>

#include "model/forward.h"

namespace sixfold {

// Slots of the rank's experts: those of its e-th expert are [begin[e], begin[e + 1]); slot i reads row rows[i] of x.
struct ExpertWork {
  const float* x = nullptr;        // [.., hidden]
  std::span<const int32_t> rows;   // [slots]
  std::span<const int32_t> begin;  // [experts + 1]
};

// expert_parts [nodes, slots, hidden]: this rank's parts of down(act(gate, up)) of every slot; without the bias of down.
void RunExperts(ForwardContext& c, const LayerWeights& w, const ExpertWork& work);

// Adds the bias of down to complete sums: row places[i] of slots [..][hidden] (row i without places) is an output of expert
// experts[i], one of the rank's. Once each, after the parts of all ranks are in and before anything is rounded. Nothing for a
// model without.
void AddExpertDownBias(ForwardContext& c, const LayerWeights& w, std::span<const int32_t> experts,
                       std::span<const int32_t> places, float* slots);

}  // namespace sixfold
