// The run behind `sixfold trace`: one prompt on one replica as one micro-batch, perhaps one more step, everything recorded.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "apps/launch.h"
#include "apps/loading.h"
#include "apps/options.h"
#include "base/ids.h"
#include "base/status.h"
#include "mesh/traffic.h"
#include "trace/journey.h"

namespace sixfold::apps {

struct TraceWork {
  std::vector<TokenId> tokens;
  int replica = 0;
  int decode_steps = 0;  // after the prompt, each with the most likely token
  int64_t position = 0;  // of the token for which experts are forced
  std::map<int, std::vector<int32_t>> experts;  // by layer from 0; elsewhere the gate chooses
};

struct TracedRun {
  trace::Run run{{}};
  trace::Map map;
  Ledger ledger;                 // payload of the run, without the metadata of the expert exchange
  std::vector<TokenId> answers;  // [decode_steps + 1]; the last one is not computed on
  std::map<int, std::vector<int32_t>> experts;  // of the token at `position`, by layer from 0
};

// {"LAYER": [e1, e2, …]}, layers from 1. kInvalidArgument names what does not fit the model; kInvalidFile: what cannot be read.
Result<std::map<int, std::vector<int32_t>>> ReadForcedExperts(const std::string& path, const ModelShape& shape);

// kInternal when what was recorded is not what was counted: a message that nobody spoke for.
Result<TracedRun> RunTraced(const PlannedModel& planned, const Options& options, const Launch& launch, const TraceWork& work);
// The part of a rank above 0.
Status FollowTraced(const PlannedModel& planned, const Launch& launch);

}  // namespace sixfold::apps
