// Which layouts `verify` runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/options.h"
#include "base/status.h"
#include "mesh/layout.h"

namespace sixfold::apps {

struct NamedLayout {
  std::string flags;  // that ask for it
  Layout layout;
};

struct LayoutList {
  std::vector<NamedLayout> layouts;
  std::vector<std::string> refused;  // of `all`: what the model or --max-ranks does not allow, with the reason
};

// --layouts: "all" sizes (tp and cp 1, 2, 3, 4, 8, sequence parallelism off and on, the five forms of context parallelism, pp
// 1 to 4, dp 1, 2, 4, 1, 2 and 4 nodes, three orders of counting; with experts dp 8 and 16, ep 1, 2, 3, 4, 8, 16, etp 1, 2, 4,
// both backends), "covering" (a subset in which every two values of two of these that meet
// in any layout meet), or a file: one layout a line, as flags; '#' starts a comment. Errors of a
// file name the line. own: the layout of verify's own flags, or null; the one to verify when
// --layouts is not given. ranks: layouts of that many alone are wanted.
Result<LayoutList> LayoutsToVerify(const Options& options, const ModelShape& shape, const Layout* own,
                                   std::optional<int> ranks);

}  // namespace sixfold::apps
