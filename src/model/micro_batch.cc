#include "model/micro_batch.h"

#include <algorithm>

#include "base/check.h"
#include "kv/geometry.h"
#include "mesh/axes.h"

namespace sixfold {

namespace {

constexpr int64_t kRowsForTwo = 128;  // rows a stage from which two micro-batches a stage pay

}  // namespace

int MicroBatchCount(int64_t rows, int pp) {
  if (pp == 1) return 1;
  const int wanted = rows >= kRowsForTwo * pp ? 2 * pp : pp;
  return static_cast<int>(std::clamp<int64_t>(rows, 1, wanted));
}

std::vector<int64_t> MicroBatchEnds(int64_t rows, int count) {
  std::vector<int64_t> ends;
  for (int m = 0; m < count; ++m) ends.push_back(ShareOf(rows, count, m).end);
  return ends;
}

std::vector<int64_t> WorstSteps(int64_t rows_max, int pp) {
  // Below that bound a step has half the micro-batches.
  return {rows_max, std::min(rows_max, kRowsForTwo * pp - 1)};
}

std::vector<StepBatch> SplitBatch(const StepBatch& batch, int count) {
  std::vector<StepBatch> parts(count);
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  size_t sequence = 0;
  int64_t done = 0;  // rows of that sequence in earlier parts
  for (int p = 0; p < count; ++p) {
    const Share share = ShareOf(rows, count, p);
    StepBatch& part = parts[p];
    part.tokens.assign(batch.tokens.begin() + share.begin, batch.tokens.begin() + share.end);
    for (int64_t left = share.size(); left > 0;) {
      SF_CHECK_LT(sequence, batch.sequences.size());
      const StepSequence& whole = batch.sequences[sequence];
      const int64_t take = std::min(left, whole.rows - done);
      const int64_t logits_from = whole.rows - whole.logit_rows;
      part.sequences.push_back({.first_position = whole.first_position + done,
                                .rows = take,
                                .logit_rows = std::clamp<int64_t>(done + take - logits_from, 0, take),
                                .blocks = whole.blocks});
      left -= take;
      done += take;
      if (done == whole.rows) {
        ++sequence;
        done = 0;
      }
    }
  }
  return parts;
}

std::vector<int32_t> WantedRows(const StepBatch& batch) {
  std::vector<int32_t> wanted;
  int64_t row = 0;
  for (const StepSequence& s : batch.sequences) {
    for (int64_t r = s.rows - s.logit_rows; r < s.rows; ++r) wanted.push_back(static_cast<int32_t>(row + r));
    row += s.rows;
  }
  return wanted;
}

MicroBatchShape ShapeOfBatch(const Layout& layout, const StepBatch& batch, int64_t blocks) {
  MicroBatchShape shape{.rows = static_cast<int64_t>(batch.tokens.size()), .wanted = WantedRows(batch), .sequences = {}};
  for (const StepSequence& s : batch.sequences) {
    ContextSequence& context = shape.sequences.emplace_back();
    context.first_position = s.first_position;
    context.rows = s.rows;
    if (layout.cp() == 1 || layout.context().by_token) continue;
    const int64_t each = layout.context().chunk / kPageTokens;
    const int64_t end = BlocksFor(s.first_position + s.rows);
    for (int64_t block = 0; block < end; block += each) {
      context.owners.push_back(static_cast<int32_t>(s.blocks[block] / blocks));
    }
  }
  return shape;
}

StepShape ShapeOfStep(const Layout& layout, std::span<const std::vector<StepBatch>> micro_batches, int64_t blocks) {
  StepShape shape;
  for (const std::vector<StepBatch>& replica : micro_batches) {
    shape.replicas.emplace_back();
    for (const StepBatch& batch : replica) shape.replicas.back().push_back(ShapeOfBatch(layout, batch, blocks));
  }
  return shape;
}

}  // namespace sixfold
