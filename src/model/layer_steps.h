// What every block of a layer is made of: norms, products, and sums that tensor parallelism cuts. The functions read and write
// the rank's scratch (model/forward.h, ForwardScratch); errors are the transport's.
#pragma once

#include <cstddef>
#include <vector>

#include "mesh/collectives.h"
#include "model/forward.h"

namespace sixfold {

inline constexpr int64_t kFloatBytes = sizeof(float);

inline std::byte* BytesOf(std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); }

inline Bounds Times(Bounds bounds, int64_t factor) {
  for (int64_t& b : bounds) b *= factor;
  return bounds;
}

// Shares of the micro-batch's rows among the tp group under sequence parallelism.
inline Bounds RowsOf(const ForwardContext& c) { return RowBounds(c.rows, c.layout.tp()); }

// What the next operation's buffer holds, for a recorder if there is one: rows of this rank in order, [vectors][rows] of
// row_bytes each; or the rows whose logits are wanted.
inline void CarryRows(ForwardContext& c, trace::Phase phase, int64_t row_bytes, int64_t base = 0) {
  if (c.trace != nullptr) c.trace->CarryRows(phase, row_bytes, base);
}
void CarryWanted(ForwardContext& c, trace::Phase phase, int64_t row_bytes);

// `out`: this rank's rows of the sum over the group's parts, [vectors of a row][hidden] each. Without a group the one part is
// the sum, and the two vectors change places.
Status SumParts(ForwardContext& c, const TreeCut& cut, int64_t vectors, std::vector<float>* parts, std::vector<float>* out);

// Rows `rows` of normed [rows, hidden], from x: rows that this rank has.
void NormRows(ForwardContext& c, const std::vector<float>& weight, Share rows);
// normed [rows, hidden] of all rows, from this rank's rows of x. phase: of the gather.
Status Norm(ForwardContext& c, const std::vector<float>& weight, trace::Phase phase);

// One product with the prepared rows `a` into `out` [rows][n], which is resized.
MatMulTask Product(const Activations& a, const PackedMatrix& w, std::vector<float>* out);

// x [rows][bias.size()] += bias; nothing without a bias.
void AddBias(ForwardContext& c, std::vector<float>* x, int64_t rows, const std::vector<float>& bias);

// This rank's parts of a cut sum: partials [nodes, rows, hidden] of the products of in [rows, the rank's k].
void RunNodes(ForwardContext& c, const std::vector<float>& in, const KCut& cut, const CutMatrix& w);

// A gated FFN that tp cuts. Biases may be empty.
struct GatedFfn {
  const PackedMatrix &gate, &up;
  const CutMatrix& down;
  const KCut& cut;           // of down
  int64_t width = 0;         // this rank's share; 0: none
  const std::vector<float>&gate_bias, &up_bias, &down_bias;
  trace::Phase phase;        // of the sum
};
// x += down(silu(gate(normed)) * up(normed)).
Status RunGatedFfn(ForwardContext& c, const GatedFfn& ffn);

// x += sum of the parts + bias.
Status AddSum(ForwardContext& c, const KCut& cut, const std::vector<float>& bias, trace::Phase phase);

// Keys and values of the rows into their pages, wherever these rest; v null where a value lies in its key. Then attention over
// all that the rows see.
Status WriteKeys(ForwardContext& c, const std::vector<float>& k, const std::vector<float>* v, const KvLayerView& pages);
Status Attend(ForwardContext& c, const AttentionArgs& args);

}  // namespace sixfold
