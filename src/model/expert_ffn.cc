#include "model/expert_ffn.h"

#include <algorithm>

#include "model/layer_steps.h"

namespace sixfold {

namespace {

void AddGateUpBias(ForwardContext& c, const LayerWeights& w, const ExpertWork& work) {
  ForwardScratch& s = c.s;
  if (!c.config.moe.bias) return;
  const int64_t width = c.own.expert_intermediate.size();
  for (size_t e = 0; e < w.experts.size(); ++e) {
    const int64_t begin = work.begin[e], rows = work.begin[e + 1] - begin;
    if (rows == 0) continue;
    c.ops.AddBias(&s.expert_gate[begin * width], width, rows, width, w.experts[e].gate_bias.data());
    c.ops.AddBias(&s.expert_up[begin * width], width, rows, width, w.experts[e].up_bias.data());
  }
}

// expert_gate = act(expert_gate, expert_up).
void Activate(ForwardContext& c, int64_t count) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  if (moe.swiglu_limit > 0) {
    c.ops.ClampedSwiGluMul(s.expert_gate.data(), s.expert_up.data(), count, {.alpha = moe.swiglu_alpha, .limit = moe.swiglu_limit},
                           s.expert_gate.data());
  } else {
    c.ops.SiluMul(s.expert_gate.data(), s.expert_up.data(), count, s.expert_gate.data());
  }
}

}  // namespace

void RunExperts(ForwardContext& c, const LayerWeights& w, const ExpertWork& work) {
  ForwardScratch& s = c.s;
  const KCut& cut = c.layout.expert_down_cut();
  const std::vector<Share>& nodes = cut.node_k[c.own.etp];
  const auto slots = static_cast<int64_t>(work.rows.size());
  const auto experts = static_cast<int>(work.begin.size()) - 1;
  const Share width = c.own.expert_intermediate;
  s.expert_parts.resize(static_cast<int64_t>(nodes.size()) * slots * c.config.hidden);
  if (width.size() == 0) return;
  const auto count = [&](int32_t e) { return work.begin[e + 1] - work.begin[e]; };
  s.expert_order.resize(experts);
  for (int e = 0; e < experts; ++e) s.expert_order[e] = e;
  std::sort(s.expert_order.begin(), s.expert_order.end(),
            [&](int32_t a, int32_t b) { return count(a) != count(b) ? count(a) > count(b) : a < b; });
  s.expert_gate.resize(slots * width.size());
  s.expert_up.resize(slots * width.size());
  s.expert_in.resize(experts);
  s.expert_mid.resize(experts * nodes.size());
  s.tasks.clear();
  for (int i = 0; i < experts && count(s.expert_order[i]) > 0; ++i) {
    const int32_t e = s.expert_order[i];
    const int64_t begin = work.begin[e];
    c.matmul.Prepare(work.x, count(e), c.config.hidden, w.experts[e].gate.leaves, c.act, work.rows.subspan(begin, count(e)),
                     &s.expert_in[i]);
    s.tasks.push_back({&s.expert_in[i], &w.experts[e].gate, &s.expert_gate[begin * width.size()], width.size()});
    s.tasks.push_back({&s.expert_in[i], &w.experts[e].up, &s.expert_up[begin * width.size()], width.size()});
  }
  c.matmul.Run(s.tasks);
  AddGateUpBias(c, w, work);
  Activate(c, slots * width.size());
  s.tasks.clear();
  for (int i = 0; i < experts && count(s.expert_order[i]) > 0; ++i) {
    const int32_t e = s.expert_order[i];
    const int64_t begin = work.begin[e];
    for (size_t n = 0; n < nodes.size(); ++n) {
      Activations& mid = s.expert_mid[i * nodes.size() + n];
      c.matmul.Prepare(&s.expert_gate[begin * width.size() + nodes[n].begin - width.begin], count(e), width.size(),
                       cut.node_leaves[c.own.etp][n], c.act, {}, &mid);
      s.tasks.push_back({&mid, &w.experts[e].down[n],
                         &s.expert_parts[(static_cast<int64_t>(n) * slots + begin) * c.config.hidden], c.config.hidden});
    }
  }
  c.matmul.Run(s.tasks);
}

void AddExpertDownBias(ForwardContext& c, const LayerWeights& w, std::span<const int32_t> experts,
                       std::span<const int32_t> places, float* slots) {
  if (!c.config.moe.bias) return;
  const int64_t hidden = c.config.hidden;
  const auto count = static_cast<int64_t>(experts.size());
  c.pool.ParallelFor(count, c.pool.GrainFor(count, 1), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* slot = slots + (places.empty() ? i : places[i]) * hidden;
      const auto id = std::lower_bound(w.expert_ids.begin(), w.expert_ids.end(), experts[i]);
      const std::vector<float>& bias = w.experts[id - w.expert_ids.begin()].down_bias;
      for (int64_t j = 0; j < hidden; ++j) slot[j] += bias[j];
    }
  });
}

}  // namespace sixfold
