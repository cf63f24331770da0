// The memory that each rank of an instance will take, before anything is loaded: for --dry-run and
// for the check at start.
#pragma once

#include <string>

#include "apps/launch.h"
#include "apps/loading.h"
#include "apps/options.h"
#include "base/status.h"
#include "engine/engine.h"

namespace sixfold::apps {

// kOutOfMemory when the ranks of this machine need more than is available: names the largest part,
// the flags that shrink it and, where there is one near, a value that fits; or when no K/V memory
// could hold --max-model-len. For what the command will do with its options: run, serve, generate,
// logits, perplexity.
Status CheckMemory(const Options& options, const PlannedModel& planned, const Launch& launch);

// --dry-run: prints the table and checks it.
Status RunDryRun(const Options& options, const Launch& launch);

// How little the K/V memory holds, where that is less than one sequence of the model's length (of 2,048 tokens, if nobody gave
// --kv-cache-memory); empty otherwise.
std::string SmallKvRemark(const Options& options, const Engine& engine, const ModelConfig& config, const Layout& layout);

}  // namespace sixfold::apps
