// verify --balance: how much attention each rank of a context group has to do, by the way a prompt is dealt.
#pragma once

#include "apps/loading.h"
#include "apps/options.h"
#include "base/status.h"

namespace sixfold::apps {

// Prints (query, key) pairs of each cp rank for a prompt of --tokens tokens in one step: cut in C runs, zigzag in 2C runs, and
// row by row. Rows are dealt by the layout library; only the C runs, which nothing here uses, are made for comparison.
// kInvalidArgument: the layout has no context parallelism, or --tokens is no length.
Status RunBalance(const Options& options, const PlannedModel& planned);

}  // namespace sixfold::apps
