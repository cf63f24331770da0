// cluster.toml: nodes, ranks per node, links. The format stands in docs/cluster.md.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"
#include "mesh/cluster.h"

namespace sixfold {

// Bounds of a file that is not damaged.
inline constexpr int kClusterRanksMax = 65536;
inline constexpr size_t kClusterFileBytesMax = 1 << 20;

// `file` is named in messages. kInvalidFile, "file:line: key: expected …, got …": TOML that does
// not parse, a key that is not known (with the nearest that is) or stands twice, a value of the
// wrong type or beyond its bounds, nodes that do not fit the list of ranks per node.
Result<Cluster> ParseClusterFile(std::string_view text, const std::string& file);
// The same of a file; kInvalidFile too when it cannot be read or is larger than
// kClusterFileBytesMax.
Result<Cluster> ReadClusterFile(const std::filesystem::path& path);

}  // namespace sixfold
