// How a step is cut into the micro-batches that flow through the pipeline stages one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/collectives.h"
#include "model/step_batch.h"

namespace sixfold {

// Micro-batches of a step whose longest replica has `rows` rows: one without a pipeline, else about one a stage, two when
// there is enough work in each (fewer bubbles); never more than rows, at least one.
int MicroBatchCount(int64_t rows, int pp);

// Where each of `count` micro-batches of `rows` rows ends (SplitBatch).
std::vector<int64_t> MicroBatchEnds(int64_t rows, int count);

// Of the steps of up to rows_max rows, those that can need most memory: the largest, and the one whose micro-batches are
// the largest.
std::vector<int64_t> WorstSteps(int64_t rows_max, int pp);

// Contiguous shares of the rows in order, each at most one row larger than the others. A prompt may be cut: its later rows
// then find the K/V of the earlier ones, since a stage takes micro-batches in order.
std::vector<StepBatch> SplitBatch(const StepBatch& batch, int count);

// What the layout needs to know of the batches of all replicas. blocks: of K/V memory on a rank, by which block numbers name
// owners (StepSequence::blocks).
StepShape ShapeOfStep(const Layout& layout, std::span<const std::vector<StepBatch>> micro_batches, int64_t blocks);
// Rows whose logits are wanted, ascending.
std::vector<int32_t> WantedRows(const StepBatch& batch);
MicroBatchShape ShapeOfBatch(const Layout& layout, const StepBatch& batch, int64_t blocks);

}  // namespace sixfold
