// What a rank has sent, counted where it is sent.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>

#include "mesh/axes.h"
#include "mesh/cluster.h"

namespace sixfold {

enum class CommOp : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kGather,
  kAllToAll,
  kSend,
  kBroadcast,
  kBarrier
};
std::string_view NameOf(
    CommOp op);  // "all_reduce", "reduce_scatter", "all_gather", "gather", "all_to_all", "send", …

struct LedgerKey {
  Axis axis = Axis::kTp;
  CommOp op = CommOp::kBarrier;
  LinkClass link = LinkClass::kShm;
  auto operator<=>(const LedgerKey&) const = default;
};

// count: operations of a group that has two members joined by this link, counted once a group (by
// its first member; a send by its sender), whether bytes flowed or not. bytes: payload that left a
// rank over the link, summed over ranks.
struct LedgerEntry {
  int64_t count = 0;
  int64_t bytes = 0;
  bool operator==(const LedgerEntry&) const = default;
};

// Payload of the model's operations. Control messages (plans, barriers, progress) are counted
// apart, in ControlTraffic.
using Ledger = std::map<LedgerKey, LedgerEntry>;

struct ControlTraffic {
  int64_t messages = 0;
  int64_t bytes = 0;
};

}  // namespace sixfold
