// What a rank's forward pass talks through. Null where the rank has nobody to talk to.
#pragma once

#include "comm/communicator.h"

namespace sixfold {

struct RankComm {
  Communicator* tp = nullptr;         // the ranks that share its layers and rows
  Communicator* cp = nullptr;         // those that share its layers, heads and requests, in order of cp
  Communicator* ulysses = nullptr;    // those of them that transpose heads with it (ContextRule::ulysses)
  Communicator* experts = nullptr;    // the ranks that exchange rows with it (Layout::DispatchGroup)
  Communicator* etp = nullptr;        // those of them that share its experts
  Communicator* previous = nullptr;   // pair with its counterpart one pipeline stage before; member 0 is the earlier stage
  Communicator* next = nullptr;       // the same, one stage on
  Communicator* leader = nullptr;     // pair with rank 0 (member 0), on ranks of the last stage that are not rank 0
  Transport* transport = nullptr;     // to say where the pass stands
};

}  // namespace sixfold
