#include "model/micro_batch.h"

#include <algorithm>

#include "base/check.h"
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

MicroBatchShape ShapeOfBatch(const StepBatch& batch) {
  MicroBatchShape shape{.rows = static_cast<int64_t>(batch.tokens.size())};
  int64_t row = 0;
  for (const StepSequence& s : batch.sequences) {
    for (int64_t r = s.rows - s.logit_rows; r < s.rows; ++r) shape.wanted.push_back(static_cast<int32_t>(row + r));
    row += s.rows;
  }
  return shape;
}

StepShape ShapeOfStep(std::span<const std::vector<StepBatch>> micro_batches) {
  StepShape shape;
  for (const std::vector<StepBatch>& replica : micro_batches) {
    shape.replicas.emplace_back();
    for (const StepBatch& batch : replica) shape.replicas.back().push_back(ShapeOfBatch(batch));
  }
  return shape;
}

}  // namespace sixfold
