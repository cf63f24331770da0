// Which data-parallel replica a sequence starts on: a pure function from the replicas' loads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace sixfold {

// What one replica has to do in the step being planned, as far as it is planned.
struct ReplicaLoad {
  enum class Room : uint8_t { kNone, kForIt };
  Room room = Room::kNone;     // whether the sequence could start here in this step
  int64_t running = 0;         // sequences that hold blocks
  int64_t rows_missing = 0;    // of those: rows not yet computed, this step's included
  int64_t blocks_free = 0;
};

// Of the replicas with room the least loaded: the fewest running sequences (they set the length of
// every later step), then the fewest missing rows (prompts still to be computed), then the most free
// blocks, then the lowest number. nullopt: none has room, the sequence waits.
std::optional<int32_t> PlaceSequence(std::span<const ReplicaLoad> replicas);

}  // namespace sixfold
