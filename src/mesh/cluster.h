// Which ranks are on which node, and what the links between ranks give. Plain values; file format:
// docs/cluster.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sixfold {

enum class LinkClass : uint8_t {
  kShm,
  kPcie,
  kNvlink,
  kNvswitch,
  kNvl72,
  kInfiniband,
  kRoce,
  kEthernet
};
inline constexpr int kLinkClassCount = 8;
std::string_view NameOf(LinkClass link);  // "shm", "pcie", "nvlink", "nvswitch", "nvl72",
                                          // "infiniband", "roce", "ethernet"
std::optional<LinkClass> LinkClassFromName(std::string_view name);

// One direction of one rank's link.
struct Link {
  LinkClass link = LinkClass::kShm;
  double bandwidth_gb_s = 0;  // 1e9 bytes a second
  double latency_us = 0;
  bool operator==(const Link&) const = default;
};
// Bandwidth and latency that are usual for the class; sources stand in cluster.cc.
Link PresetLink(LinkClass link);

// Ranks stand on nodes in ascending order: node 0 has the first ranks_per_node[0] of them.
struct Cluster {
  std::vector<int> ranks_per_node;
  Link inside;   // between ranks of one node
  Link between;  // between nodes

  // One node of `ranks` ranks linked by shared memory.
  static Cluster OneNode(int ranks);
  // `nodes` equal shares, shared memory inside and Ethernet between. kInvalidArgument when they do
  // not come out equal.
  static Result<Cluster> EqualNodes(int ranks, int nodes);

  int ranks() const;
  int nodes() const { return static_cast<int>(ranks_per_node.size()); }
  int NodeOf(int rank) const;
  const Link& LinkBetween(int from, int to) const {
    return NodeOf(from) == NodeOf(to) ? inside : between;
  }
};

}  // namespace sixfold
