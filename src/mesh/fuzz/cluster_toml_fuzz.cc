// Any bytes as cluster.toml: a refusal that names the file, or a cluster whose sizes are within
// bounds.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "mesh/cluster_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sixfold;
  const auto cluster =
      ParseClusterFile({reinterpret_cast<const char*>(data), size}, "cluster.toml");
  if (!cluster.ok()) {
    SF_CHECK(cluster.status().code() == StatusCode::kInvalidFile);
    SF_CHECK_EQ(cluster.status().message().rfind("cluster.toml:", 0), 0u);
    return 0;
  }
  SF_CHECK_GE(cluster->nodes(), 1);
  SF_CHECK_LE(cluster->ranks(), kClusterRanksMax);
  SF_CHECK_EQ(cluster->NodeOf(cluster->ranks() - 1), cluster->nodes() - 1);
  for (const Link& link : {cluster->inside, cluster->between}) {
    SF_CHECK(link.bandwidth_gb_s > 0 && std::isfinite(link.bandwidth_gb_s));
    SF_CHECK(link.latency_us >= 0 && std::isfinite(link.latency_us));
  }
  return 0;
}
