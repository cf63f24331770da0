#include "model/forward.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/dequantize.h"
#include "model/attention_block.h"
#include "model/expert_block.h"
#include "model/layer_steps.h"
#include "model/micro_batch.h"
#include "model/rope.h"

namespace sixfold {

namespace {

// Embeddings of this rank's rows. Every first-stage rank has all of the mapped file: nothing is sent (docs/decisions/0011).
void Embed(ForwardContext& c, const StepBatch& batch) {
  const int64_t hidden = c.config.hidden;
  c.s.x.resize(c.own_rows.size() * hidden);
  c.pool.ParallelFor(c.own_rows.size(), c.pool.GrainFor(c.own_rows.size(), 1), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const TokenId token = batch.tokens[c.row_numbers[c.own_rows.begin + r]];
      DequantizeRow(c.weights.embedding, token, c.s.x.data() + r * hidden);
    }
  });
}

// Which tokens the rows are.
void NoteRows(ForwardContext& c) {
  trace::RowList list{.step = c.step,
                      .micro_batch = c.micro_batch,
                      .replica = c.own.dp,
                      .first_layer = c.own.layers.begin,
                      .end_layer = c.own.layers.end,
                      .own_begin = c.own_rows.begin,
                      .own_end = c.own_rows.end,
                      .share_begin = c.layout.DispatchRows(c.rows, c.own.tp).begin};
  for (const RowRun& run : c.runs) {
    for (int64_t r = 0; r < run.rows; ++r) list.rows.push_back({run.sequence, run.position + r * run.stride});
  }
  c.trace->BeginMicroBatch(std::move(list));
}

// Positions, rotation tables and attention rows of all sequences.
void Begin(ForwardContext& c, const StepBatch& batch) {
  ForwardScratch& s = c.s;
  s.positions.clear();
  s.sequences.clear();
  s.wanted.clear();
  for (const RowRun& run : c.runs) {
    s.sequences.push_back({.first_row = static_cast<int64_t>(s.positions.size()),
                           .rows = run.rows,
                           .first_position = run.position,
                           .pages = batch.sequences[run.sequence].blocks.data()});
    for (int64_t r = 0; r < run.rows; ++r) s.positions.push_back(run.position + r * run.stride);
  }
  s.wanted = OwnWanted(WantedRows(batch), c.row_numbers);
  SF_CHECK_EQ(static_cast<int64_t>(s.positions.size()), c.rows);
  while (static_cast<int64_t>(s.row_numbers.size()) < c.rows) {
    s.row_numbers.push_back(static_cast<int32_t>(s.row_numbers.size()));
  }
  FillRotation(c.inverse_frequencies, c.rotation_magnitude, s.positions, &s.cos, &s.sin);
  if (c.trace != nullptr) NoteRows(c);
}

// x += down(silu(gate(norm(x))) * up(norm(x))).
Status DenseBlock(ForwardContext& c, int layer) {
  const LayerWeights& w = c.weights.layers[layer - c.own.layers.begin];
  SF_RETURN_IF_ERROR(Norm(c, w.ffn_norm, trace::Phase::kFfnGather));
  return RunGatedFfn(c, {.gate = w.gate, .up = w.up, .down = w.down, .cut = c.layout.down_cut(), .width = c.own.intermediate.size(),
                         .gate_bias = w.gate_bias, .up_bias = w.up_bias, .down_bias = w.down_bias, .phase = trace::Phase::kFfnSum});
}

// Final norm and this rank's columns of the head over the wanted rows.
Status Logits(ForwardContext& c) {
  ForwardScratch& s = c.s;
  const int64_t hidden = c.config.hidden;
  const auto wanted = static_cast<int64_t>(s.wanted.size());
  const Bounds row_bounds = c.layout.sequence_parallel() ? RowsOf(c) : Bounds{0, c.rows};
  const Bounds bounds = WantedBounds(s.wanted, row_bounds);
  const int member = c.layout.sequence_parallel() ? c.own.tp : 0;
  s.normed.resize(wanted * hidden);
  for (int64_t i = bounds[member]; i < bounds[member + 1]; ++i) {
    std::copy_n(&s.x[(s.wanted[i] - c.own_rows.begin) * hidden], hidden, &s.normed[i * hidden]);
  }
  float* mine = s.normed.data() + bounds[member] * hidden;
  c.ops.RmsNorm(mine, hidden, bounds[member + 1] - bounds[member], hidden, c.weights.final_norm.data(), c.config.norm_eps,
                mine, hidden);
  if (c.layout.sequence_parallel()) {
    CarryWanted(c, trace::Phase::kHeadGather, hidden * kFloatBytes);
    SF_RETURN_IF_ERROR(c.comm.tp->AllGather(Times(bounds, hidden * kFloatBytes), BytesOf(s.normed)));
  }
  s.logits.clear();
  if (wanted == 0 || c.own.vocab.size() == 0) return OkStatus();
  c.matmul.Prepare(s.normed.data(), wanted, hidden, c.weights.head.leaves, c.act, {}, &s.a);
  const MatMulTask head = Product(s.a, c.weights.head, &s.logits);
  c.matmul.Run({&head, 1});
  return OkStatus();
}

}  // namespace

Status ForwardStage(ForwardContext& c, const StepBatch& batch, KvStorage& kv) {
  c.rows = static_cast<int64_t>(c.row_numbers.size());
  c.own_rows = c.layout.sequence_parallel() ? ShareOf(c.rows, c.layout.tp(), c.own.tp) : Share{0, c.rows};
  Begin(c, batch);
  if (c.comm.transport != nullptr) {
    c.comm.transport->Progress({.step = c.step, .layer = static_cast<int>(c.own.layers.begin)});
  }
  if (c.own.first_stage) Embed(c, batch);
  SF_CHECK_EQ(static_cast<int64_t>(c.s.x.size()), c.own_rows.size() * c.config.hidden);
  size_t sparse_index = 0;
  c.first_sparse = std::count_if(c.config.layers.begin(), c.config.layers.begin() + c.own.layers.begin,
                                 [](const LayerConfig& l) { return l.sparse; });
  for (int layer = 0; layer < static_cast<int>(c.own.layers.end); ++layer) {
    const bool sparse = c.config.layers[layer].sparse;
    if (layer >= c.own.layers.begin) {
      if (c.comm.transport != nullptr) c.comm.transport->Progress({.step = c.step, .layer = layer});
      if (c.trace != nullptr) c.trace->EnterLayer(layer);
      SF_RETURN_IF_ERROR(AttentionBlock(c, layer, kv));
      SF_RETURN_IF_ERROR(sparse ? SparseBlock(c, layer, sparse_index) : DenseBlock(c, layer));
      if (c.observer != nullptr) {
        (*c.observer)({.layer = layer, .micro_batch = c.micro_batch, .row_numbers = c.row_numbers.subspan(c.own_rows.begin, c.own_rows.size()), .rows = c.s.x});
      }
    }
    sparse_index += sparse ? 1 : 0;
  }
  return c.own.last_stage ? Logits(c) : OkStatus();
}

}  // namespace sixfold
