// What a mesh makes of the same prompt: the figures that `trace --compare` puts side by side.
#pragma once

#include <string>

#include "apps/trace_run.h"
#include "mesh/layout.h"

namespace sixfold::apps {

struct MeshFigures {
  std::string mesh, layout;
  int64_t ranks = 0, crossings = 0, operations = 0;  // of the token
  // What a rank of the prompt sends between nodes in one layer with experts, dispatch and combine together, in units of T·d:
  // elements of all rows of the prompt. 004, "the whole journey": 2·R·(T/ranks)·d of T·d.
  double experts_sent = 0;
  double experts_expected = 0;  // over uniform routes (mesh/dispatch_plan.h)
  double stage_sent = 0;        // to the next stage between nodes, once for each stage but the last, of the same units
};

MeshFigures FiguresOf(const Layout& layout, const TracedRun& traced, const trace::Journey& journey, int replica);

}  // namespace sixfold::apps
