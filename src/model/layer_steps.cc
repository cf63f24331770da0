#include "model/layer_steps.h"

#include <utility>

#include "base/check.h"
#include "model/context_cargo.h"

namespace sixfold {

void CarryWanted(ForwardContext& c, trace::Phase phase, int64_t row_bytes) {
  if (c.trace == nullptr) return;
  std::vector<trace::RowRef> rows;
  for (const int32_t row : c.s.wanted) rows.push_back(c.trace->Own(row));
  c.trace->CarryItems(phase, row_bytes, std::move(rows));
}

Status SumParts(ForwardContext& c, const TreeCut& cut, int64_t vectors, std::vector<float>* parts, std::vector<float>* out) {
  if (c.comm.tp == nullptr) {
    SF_CHECK_EQ(cut.total_nodes(), 1);
    std::swap(*parts, *out);
    return OkStatus();
  }
  const int64_t width = vectors * c.config.hidden;
  out->resize(c.own_rows.size() * width);
  if (c.layout.sequence_parallel()) return c.comm.tp->ReduceScatter(ReduceType::kF32, cut, Times(RowsOf(c), width), parts->data(), out->data());
  return c.comm.tp->AllReduce(ReduceType::kF32, cut, c.rows * width, parts->data(), out->data());
}

void NormRows(ForwardContext& c, const std::vector<float>& weight, Share rows) {
  const int64_t n = c.config.hidden;
  c.s.normed.resize(c.rows * n);
  c.ops.RmsNorm(c.s.x.data() + (rows.begin - c.own_rows.begin) * n, n, rows.size(), n, weight.data(), c.config.norm_eps,
                c.s.normed.data() + rows.begin * n, n);
}

Status Norm(ForwardContext& c, const std::vector<float>& weight, trace::Phase phase) {
  NormRows(c, weight, c.own_rows);
  if (!c.layout.sequence_parallel()) return OkStatus();
  CarryRows(c, phase, c.config.hidden * kFloatBytes);
  return c.comm.tp->AllGather(Times(RowsOf(c), c.config.hidden * kFloatBytes), BytesOf(c.s.normed));
}

MatMulTask Product(const Activations& a, const PackedMatrix& w, std::vector<float>* out) {
  out->resize(a.rows * w.n);
  return {.a = &a, .w = &w, .out = out->data(), .out_stride = w.n};
}

void AddBias(ForwardContext& c, std::vector<float>* x, int64_t rows, const std::vector<float>& bias) {
  if (bias.empty()) return;
  const auto n = static_cast<int64_t>(bias.size());
  c.ops.AddBias(x->data(), n, rows, n, bias.data());
}

void RunNodes(ForwardContext& c, const std::vector<float>& in, const KCut& cut, const CutMatrix& w) {
  ForwardScratch& s = c.s;
  const std::vector<Share>& nodes = cut.node_k[c.own.tp];
  const Share k = cut.k[c.own.tp];
  s.a_nodes.resize(std::max(s.a_nodes.size(), nodes.size()));
  s.partials.resize(static_cast<int64_t>(nodes.size()) * c.rows * c.config.hidden);
  if (c.rows == 0) return;
  s.tasks.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    c.matmul.Prepare(in.data() + nodes[i].begin - k.begin, c.rows, k.size(), cut.node_leaves[c.own.tp][i], c.act, {},
                     &s.a_nodes[i]);
    s.tasks.push_back({&s.a_nodes[i], &w[i], s.partials.data() + static_cast<int64_t>(i) * c.rows * c.config.hidden,
                       c.config.hidden});
  }
  c.matmul.Run(s.tasks);
}

Status WriteKeys(ForwardContext& c, const std::vector<float>& k, const std::vector<float>* v, const KvLayerView& pages) {
  const float* values = v != nullptr ? v->data() : nullptr;
  if (c.context != nullptr) return c.context->WriteKeys(k.data(), values, pages);
  c.ops.WriteKv(k.data(), values, c.s.sequences, pages);
  if (c.trace != nullptr) c.trace->RestKvOfAll(c.own.kv_heads.begin, c.own.kv_heads.end, KvRowBytes(pages));
  return OkStatus();
}

Status Attend(ForwardContext& c, const AttentionArgs& args) {
  if (c.context != nullptr) return c.context->Attend(args);
  c.ops.Attention(args);
  return OkStatus();
}

Status AddSum(ForwardContext& c, const KCut& cut, const std::vector<float>& bias, trace::Phase phase) {
  ForwardScratch& s = c.s;
  CarryRows(c, phase, c.config.hidden * kFloatBytes);
  SF_RETURN_IF_ERROR(SumParts(c, cut.tree, 1, &s.partials, &s.out));
  AddBias(c, &s.out, c.own_rows.size(), bias);
  c.ops.Add(s.x.data(), s.out.data(), c.own_rows.size() * c.config.hidden);
  return OkStatus();
}

Status RunGatedFfn(ForwardContext& c, const GatedFfn& ffn) {
  ForwardScratch& s = c.s;
  if (ffn.width > 0) {
    c.matmul.Prepare(s.normed.data(), c.rows, c.config.hidden, ffn.gate.leaves, c.act, {}, &s.a);
    const MatMulTask wide[] = {Product(s.a, ffn.gate, &s.gate), Product(s.a, ffn.up, &s.up)};
    c.matmul.Run(wide);
    AddBias(c, &s.gate, c.rows, ffn.gate_bias);
    AddBias(c, &s.up, c.rows, ffn.up_bias);
    c.ops.SiluMul(s.gate.data(), s.up.data(), c.rows * ffn.width, s.gate.data());
  }
  RunNodes(c, s.gate, ffn.cut, ffn.down);
  return AddSum(c, ffn.cut, ffn.down_bias, ffn.phase);
}

}  // namespace sixfold
