// What a rank has sent, counted where it is sent. Payload is a Ledger (mesh/traffic.h, which has
// NameOf(CommOp) too); control messages (plans, barriers, progress) are counted apart.
#pragma once

#include <cstdint>

#include "mesh/traffic.h"

namespace sixfold {

struct ControlTraffic {
  int64_t messages = 0;
  int64_t bytes = 0;
};

}  // namespace sixfold
