#include "model/shared_expert.h"

#include "model/layer_steps.h"

namespace sixfold {

Status SharedExpert(ForwardContext& c, const LayerWeights& w) {
  if (c.config.moe.shared_intermediate == 0) return OkStatus();
  const std::vector<float> none;
  return RunGatedFfn(c, {.gate = w.shared_gate, .up = w.shared_up, .down = w.shared_down, .cut = c.layout.shared_down_cut(),
                         .width = c.own.shared_intermediate.size(), .gate_bias = none, .up_bias = none, .down_bias = none, .phase = trace::Phase::kSharedSum});
}

}  // namespace sixfold
