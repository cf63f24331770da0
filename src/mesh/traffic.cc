#include "mesh/traffic.h"

namespace sixfold {

std::string_view NameOf(CommOp op) {
  switch (op) {
    case CommOp::kAllReduce: return "all_reduce";
    case CommOp::kReduceScatter: return "reduce_scatter";
    case CommOp::kAllGather: return "all_gather";
    case CommOp::kGather: return "gather";
    case CommOp::kAllToAll: return "all_to_all";
    case CommOp::kRoutes: return "routes";
    case CommOp::kDispatch: return "dispatch";
    case CommOp::kCombine: return "combine";
    case CommOp::kSend: return "send";
    case CommOp::kBroadcast: return "broadcast";
    case CommOp::kBarrier: return "barrier";
  }
  return "unknown";
}

void AddTo(Ledger* sum, const Ledger& more) {
  for (const auto& [key, entry] : more) {
    LedgerEntry& into = (*sum)[key];
    into.count += entry.count;
    into.bytes += entry.bytes;
  }
}

}  // namespace sixfold
