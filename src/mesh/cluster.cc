#include "mesh/cluster.h"

#include <fmt/format.h>

#include <numeric>

#include "base/check.h"

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

Link PresetLink(LinkClass link) {
  switch (link) {
    case LinkClass::kShm: return {link, 10, 1};
    case LinkClass::kPcie: return {link, 64, 5};
    case LinkClass::kNvlink: return {link, 450, 2};
    case LinkClass::kNvswitch: return {link, 450, 2};
    case LinkClass::kNvl72: return {link, 900, 2};
    case LinkClass::kInfiniband: return {link, 50, 5};
    case LinkClass::kRoce: return {link, 50, 8};
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
    return InvalidArgument(fmt::format("{} ranks do not come out equal on {} nodes", ranks, nodes));
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
