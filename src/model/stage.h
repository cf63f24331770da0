// The micro-batches of one step on one rank: what comes from the stage before, what goes to the next, and where logits go.
#pragma once

#include <span>
#include <vector>

#include "kv/geometry.h"
#include "kv/placement.h"
#include "model/forward.h"

namespace sixfold {

// Memory of messages under way, kept between steps.
struct StageBuffers {
  std::vector<std::vector<float>> outgoing;  // one a micro-batch: residual streams, or logits for rank 0
  std::vector<float> logits;                 // rank 0's own
};

// See Model::RunStage. members: shards of the ranks that exchange rows with this one, in their order.
Status RunMicroBatches(ForwardContext& context, const StageWork& work, std::span<const RankShard> members, KvStorage& kv,
                       StageBuffers* buffers);

// K/V of one block on a rank: its layers, and the K/V heads that its query heads read.
KvGeometry KvGeometryOf(const Layout& layout, const RankShard& shard);
// How the K/V of a replica's sequences are dealt to its context groups.
KvPlacement PlacementOf(const Layout& layout);
// Of the rank whose blocks are the largest.
KvGeometry LargestKvGeometry(const Layout& layout);

}  // namespace sixfold
