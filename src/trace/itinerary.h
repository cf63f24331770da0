// A journey for people and for scripts. Layers count from 1, ranks and nodes from 0.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trace/journey.h"

namespace sixfold::trace {

// "0, 3-5".
std::string RangesText(const std::vector<int32_t>& ascending);
// "all-gather", "K/V exchange", "pipeline send": what an operation is called in a table.
std::string KindOf(const Operation& operation, const Names& names);
// "11→13, 11⇒3→2": → inside a node, ⇒ between nodes, ↔ and ⇔ in both directions. "11 stays" where it
// does.
std::string HopsText(const Operation& operation);

// One line an operation, then homes, K/V, ranks and totals.
std::string JourneyTable(const Journey& journey, const Map& map);

// {"home", "ranks", "crossings", "operations", "bytes", "kv", "hops", "itinerary"}. hops: one a message between two ranks, with
// the counts reached with its operation; itinerary: one an operation, also where nothing travels.
nlohmann::ordered_json JourneyJson(const Journey& journey, const Map& map);

}  // namespace sixfold::trace
