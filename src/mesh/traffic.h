// Bytes by axis, operation and link: what a rank counts when it sends, and what a layout predicts. One form for both, so
// that they are compared with ==.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string_view>

#include "mesh/axes.h"
#include "mesh/cluster.h"

namespace sixfold {

// kDispatch and kCombine are all-to-alls of rows to experts and of outputs back; kRoutes gathers who needs what, and is
// metadata: counted apart from their payload.
enum class CommOp : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kGather,
  kAllToAll,
  kRoutes,
  kDispatch,
  kCombine,
  kSend,
  kBroadcast,
  kBarrier
};
std::string_view NameOf(CommOp op);  // "all_reduce", "reduce_scatter", "all_gather", "gather", "all_to_all", "routes", …

struct LedgerKey {
  Axis axis = Axis::kTp;
  CommOp op = CommOp::kBarrier;
  LinkClass link = LinkClass::kShm;
  auto operator<=>(const LedgerKey&) const = default;
};

// count: operations of a group that has two members joined by this link, counted once a group (by its first member; a send
// by its sender), whether bytes flowed or not. bytes: payload that left a rank over the link, summed over ranks.
struct LedgerEntry {
  int64_t count = 0;
  int64_t bytes = 0;
  bool operator==(const LedgerEntry&) const = default;
};

// Payload of the model's operations.
using Ledger = std::map<LedgerKey, LedgerEntry>;
void AddTo(Ledger* sum, const Ledger& more);

}  // namespace sixfold
