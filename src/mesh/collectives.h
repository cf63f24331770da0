// The question for bytes: what one step sends, by axis, operation and link. Engine ledger, planner, simulator and tracer all
// ask here; what an engine counts equals the answer exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/layout.h"
#include "mesh/traffic.h"

namespace sixfold {

// Rows of one micro-batch of one replica, and which of them want logits (ascending row numbers).
struct MicroBatchShape {
  int64_t rows = 0;
  std::vector<int32_t> wanted;
  std::vector<ContextSequence> sequences = {};  // only needed with context parallelism
};

// Rows of a micro-batch that a member of a context group computes, as it counts them: row numbers of the micro-batch, in the
// member's order.
std::vector<int32_t> RowNumbers(std::span<const RowRun> runs);
// What each member has of a micro-batch, [cp]; one member has it all without context parallelism.
std::vector<std::vector<RowRun>> DealBatch(const Layout& layout, const MicroBatchShape& batch);

// [dp][micro-batches]; every replica has the same number of micro-batches, some may be empty.
struct StepShape {
  std::vector<std::vector<MicroBatchShape>> replicas;
};

// Bounds of rows, wanted rows, elements among the members of a tp group: what a rank keeps of a reduce-scatter under
// sequence parallelism, and gives to the gather that follows.
std::vector<int64_t> RowBounds(int64_t rows, int members);
// [members + 1]: how many of `wanted` lie before each bound.
std::vector<int64_t> WantedBounds(std::span<const int32_t> wanted, std::span<const int64_t> row_bounds);

// Of the rows that a member has (RowNumbers), those that are wanted: numbers of its own rows, in its order.
std::vector<int32_t> OwnWanted(std::span<const int32_t> wanted, std::span<const int32_t> row_numbers);

// Under which axis logits from `rank` to rank 0 are counted: the outermost in which they differ.
Axis LeaderAxis(const Layout& layout, int rank);

// Experts that the rows of a step chose: [dp][sparse layers of the model][rows of the replica's micro-batches in order, top_k].
struct StepRoutes {
  std::vector<std::vector<std::vector<int32_t>>> replicas;
};

// Bytes of a row on its way to an expert and of an output on its way back: activations as the products read them, outputs in the
// activation dtype.
RowBytes ExpertRowBytes(const ModelShape& shape);

// Bytes that one step sends. The leader, rank 0, gets all logits. routes: of the run, so that the answer is exact; null for the
// expectation over uniform routes.
Ledger PlanCollectives(const Layout& layout, const StepShape& step, const StepRoutes* routes);

}  // namespace sixfold
