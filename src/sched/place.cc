#include "sched/place.h"

#include <tuple>

namespace sixfold {
namespace {

bool LessLoaded(const ReplicaLoad& a, const ReplicaLoad& b) {
  return std::tuple(a.running, a.rows_missing, -a.blocks_free) <
         std::tuple(b.running, b.rows_missing, -b.blocks_free);
}

}  // namespace

std::optional<int32_t> PlaceSequence(std::span<const ReplicaLoad> replicas) {
  std::optional<int32_t> best;
  for (int32_t r = 0; r < static_cast<int32_t>(replicas.size()); ++r) {
    if (replicas[r].room == ReplicaLoad::Room::kNone) continue;
    if (!best || LessLoaded(replicas[r], replicas[*best])) best = r;
  }
  return best;
}

}  // namespace sixfold
