// A run as a timeline, in the JSON that ui.perfetto.dev and chrome://tracing read.
#pragma once

#include <string>

#include "trace/journey.h"

namespace sixfold::trace {

// A process a node, a track a rank, a slice for each operation that the rank sent in; arrows along the token's hops. Times are
// the ranks' own; those of several machines are not aligned.
std::string TimelineJson(const Run& run, const Journey& journey, const Map& map);

}  // namespace sixfold::trace
