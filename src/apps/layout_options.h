// From the options of the group "Layout" to what the layout library takes, and its figures as JSON.
#pragma once

#include <string>

#include "apps/options.h"
#include "base/status.h"
#include "engine/rank_group.h"
#include "mesh/layout.h"
#include "mesh/traffic.h"

namespace sixfold::apps {

// --mesh, or the sizes one by one. Errors as below.
Result<Mesh> MeshFrom(const Options& options);
// kInvalidArgument: --mesh beside -tp, -dp or -pp; --cluster beside --nodes; a mesh that is none;
// ranks that do not come out equal on the nodes. kInvalidFile: the cluster file.
Result<sixfold::LayoutOptions> LayoutOptionsFrom(const Options& options);

// --comm-timeout, --emulate-links, and a prediction if --stats will ask for it.
RankGroupOptions GroupOptionsFrom(const Options& options);

// A JSON array of rows {axis, op, link, count, counted_bytes, predicted_bytes} of both ledgers.
std::string CollectivesJson(const Ledger& counted, const Ledger& predicted);

// Writes --stats, if it is given. group: null for one rank, whose experts' load is `alone`.
Status WriteStats(const Options& options, const Layout& layout, const ExpertLoad& alone, RankGroup* group);

}  // namespace sixfold::apps
