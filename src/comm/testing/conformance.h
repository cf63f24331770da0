// What every Transport has to pass, together with the Communicator on top of it. Plain code, so
// that the same runs as threads under a test and as processes under mpirun.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "comm/transport.h"

namespace sixfold {

struct ConformanceOptions {
  uint64_t seed = 1;
  int rounds = 40;
};

// Collective: every rank calls it with the same options. Draws groups and a program of operations
// from the seed, carries it out, and compares every byte received, the sums with ReferenceSum, and
// the ledger with its own count. kInternal: a difference, by name; or the transport's failure.
Status RunConformance(Transport& transport, const ConformanceOptions& options);

}  // namespace sixfold
