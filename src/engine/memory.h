// How much K/V memory an engine takes and how long a sequence may get: pure arithmetic, so that it can be tested and
// later planned with.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "engine/engine.h"
#include "kv/geometry.h"
#include "kv/placement.h"

namespace sixfold {

struct ResolvedOptions {
  EngineOptions options;  // without zeros that stand for "choose"
  int32_t blocks = 0;     // of K/V on each rank; one sequence of max_model_len always fits on a replica
};

// What the options are held against.
struct MemorySetting {
  KvGeometry geometry;  // of the rank whose blocks are the largest
  int64_t model_max_positions = 0;
  int64_t available_bytes = 0;  // of this machine; 0: not known
  int ranks_here = 1;           // that share them; K/V memory is counted per rank
  KvPlacement placement = {};
};

// Errors: kInvalidArgument names the flag whose value no machine could serve; kOutOfMemory names --kv-cache-memory and
// --max-model-len with the values that would work.
Result<ResolvedOptions> ResolveOptions(const EngineOptions& options, const MemorySetting& setting);

}  // namespace sixfold
