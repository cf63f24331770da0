// A journey as a picture: SVG that needs nothing else.
#pragma once

#include <string>

#include "trace/journey.h"

namespace sixfold::trace {

// Ranks from left to right in the boxes of their nodes, operations from top to bottom, an arrow a hop; crossings stand out.
// Beyond 64 ranks only those that the token touches are drawn.
std::string JourneySvg(const Journey& journey, const Map& map);

}  // namespace sixfold::trace
