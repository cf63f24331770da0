#include "mesh/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/plural.h"

namespace sixfold {

namespace {

constexpr std::string_view kLinkNames[kLinkClassCount] = {
    "shm", "pcie", "nvlink", "nvswitch", "nvl72", "infiniband", "roce", "ethernet"};

}  // namespace

std::string_view NameOf(LinkClass link) { return kLinkNames[static_cast<int>(link)]; }

std::optional<LinkClass> LinkClassFromName(std::string_view name) {
  for (int i = 0; i < kLinkClassCount; ++i) {
    if (kLinkNames[i] == name) return static_cast<LinkClass>(i);
  }
  return std::nullopt;
}

// Bandwidths are peaks of one direction; the seed documents (001 chapter 20, 000 §3.2) quote NVLink
// both ways together, which is twice that. Latencies are those of a small message through a
// communication library, not of the wire (InfiniBand's wire is below 1 µs): the documents give
// their order alone, the numbers are ours. docs/cluster.md has the table.
Link PresetLink(LinkClass link) {
  switch (link) {
    // MPI between two processes of the project's machine: 10 to 15 GB/s at 1 MiB, 1.3 µs at 4 KiB.
    case LinkClass::kShm: return {link, 10, 1};
    // PCIe 5.0 x16: 64 GB/s one way.
    case LinkClass::kPcie: return {link, 64, 5};
    // NVLink 4 on H100: 900 GB/s both ways. A switch gives any pair the whole of it.
    case LinkClass::kNvlink: return {link, 450, 2};
    case LinkClass::kNvswitch: return {link, 450, 2};
    // NVLink 5 on Blackwell: 1.8 TB/s both ways; 72 of them are the rack's 130 TB/s.
    case LinkClass::kNvl72: return {link, 900, 2};
    // NDR, 400 Gb/s a rank; the third document counts with the same 50 GB/s.
    case LinkClass::kInfiniband: return {link, 50, 5};
    // 400 Gb/s, the upper end of 200 to 400; slower to answer than InfiniBand.
    case LinkClass::kRoce: return {link, 50, 8};
    // 100 Gb/s through the kernel's TCP.
    case LinkClass::kEthernet: return {link, 12.5, 30};
  }
  SF_CHECK(false);
  return {};
}

Cluster Cluster::OneNode(int ranks) {
  return {{ranks}, PresetLink(LinkClass::kShm), PresetLink(LinkClass::kEthernet)};
}

Result<Cluster> Cluster::EqualNodes(int ranks, int nodes) {
  if (nodes < 1 || ranks % nodes != 0) {
    int fewer = std::clamp(nodes, 1, ranks);
    while (ranks % fewer != 0) --fewer;
    return InvalidArgument(
        fmt::format("{} not come out equal on {} nodes: --nodes {} does, or take a mesh whose ranks {} divides", Plural(ranks, "rank does", "ranks do"),
                    nodes, fewer, std::max(nodes, 1)));
  }
  return Cluster{std::vector<int>(nodes, ranks / nodes), PresetLink(LinkClass::kShm),
                 PresetLink(LinkClass::kEthernet)};
}

int Cluster::ranks() const {
  return std::accumulate(ranks_per_node.begin(), ranks_per_node.end(), 0);
}

int Cluster::NodeOf(int rank) const {
  int node = 0;
  for (int first = 0; node < nodes(); ++node) {
    first += ranks_per_node[node];
    if (rank < first) return node;
  }
  SF_CHECK(false);  // a rank beyond the cluster
  return node;
}

}  // namespace sixfold
