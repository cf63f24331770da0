#include "model/expert_ffn.h"

#include "model/layer_steps.h"

namespace sixfold {

void RunExperts(ForwardContext& c, const LayerWeights& w) {
  ForwardScratch& s = c.s;
  const MoeConfig& moe = c.config.moe;
  const KCut& cut = c.layout.expert_down_cut();
  const std::vector<Share>& nodes = cut.node_k[c.own.tp];
  const auto slots = static_cast<int64_t>(s.expert_rows.size());
  const Share width = c.own.expert_intermediate;
  s.expert_parts.resize(static_cast<int64_t>(nodes.size()) * slots * c.config.hidden);
  if (width.size() == 0) return;
  s.expert_gate.resize(slots * width.size());
  s.expert_up.resize(slots * width.size());
  s.expert_in.resize(moe.experts);
  s.expert_mid.resize(moe.experts * nodes.size());
  s.tasks.clear();
  for (int i = 0; i < moe.experts; ++i) {
    const int32_t e = s.expert_order[i];
    const int64_t begin = s.expert_begin[e], count = s.expert_begin[e + 1] - begin;
    if (count == 0) break;
    c.matmul.Prepare(s.normed.data(), count, c.config.hidden, w.experts[e].gate.leaves, c.act,
                     std::span(s.expert_rows).subspan(begin, count), &s.expert_in[i]);
    s.tasks.push_back({&s.expert_in[i], &w.experts[e].gate, &s.expert_gate[begin * width.size()], width.size()});
    s.tasks.push_back({&s.expert_in[i], &w.experts[e].up, &s.expert_up[begin * width.size()], width.size()});
  }
  c.matmul.Run(s.tasks);
  c.ops.SiluMul(s.expert_gate.data(), s.expert_up.data(), slots * width.size(), s.expert_gate.data());
  s.tasks.clear();
  for (int i = 0; i < moe.experts; ++i) {
    const int32_t e = s.expert_order[i];
    const int64_t begin = s.expert_begin[e], count = s.expert_begin[e + 1] - begin;
    if (count == 0) break;
    for (size_t n = 0; n < nodes.size(); ++n) {
      Activations& mid = s.expert_mid[i * nodes.size() + n];
      c.matmul.Prepare(&s.expert_gate[begin * width.size() + nodes[n].begin - width.begin], count, width.size(),
                       cut.node_leaves[c.own.tp][n], c.act, {}, &mid);
      s.tasks.push_back({&mid, &w.experts[e].down[n],
                         &s.expert_parts[(static_cast<int64_t>(n) * slots + begin) * c.config.hidden], c.config.hidden});
    }
  }
  c.matmul.Run(s.tasks);
}

}  // namespace sixfold
