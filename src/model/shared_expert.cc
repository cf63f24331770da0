#include "model/shared_expert.h"

#include "model/layer_steps.h"

namespace sixfold {

Status SharedExpert(ForwardContext& c, const LayerWeights& w) {
  if (c.config.moe.shared_intermediate == 0) return OkStatus();
  ForwardScratch& s = c.s;
  const int64_t width = c.own.shared_intermediate.size();
  if (width > 0) {
    c.matmul.Prepare(s.normed.data(), c.rows, c.config.hidden, w.shared_gate.leaves, c.act, {}, &s.a);
    const MatMulTask wide[] = {Product(s.a, w.shared_gate, &s.gate), Product(s.a, w.shared_up, &s.up)};
    c.matmul.Run(wide);
    c.ops.SiluMul(s.gate.data(), s.up.data(), c.rows * width, s.gate.data());
  }
  RunNodes(c, s.gate, c.layout.shared_down_cut(), w.shared_down);
  return AddSum(c, c.layout.shared_down_cut(), {});
}

}  // namespace sixfold
