// Hashes of weight files kept between processes: one small file for each weight file, in the user's
// cache folder. Best effort: an entry that is absent, damaged or of another state of the file
// counts as none, and a folder that cannot be written keeps none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"

namespace sixfold {

// The state of a file that an entry belongs to.
struct FileKey {
  std::string path;  // canonical
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;  // since 1970
  uint64_t inode = 0;
  bool operator==(const FileKey&) const = default;
};

// Of one tensor in the file.
struct CachedHash {
  uint64_t offset = 0, bytes = 0;
  Digest256 digest{};
};

// In the order of writing; empty when there is no entry for exactly this state.
std::vector<CachedHash> ReadHashCache(const std::filesystem::path& folder, const FileKey& key);
// Replaces the entry of the path, whole or not at all. Of more than kHashCacheEntriesMax entries
// the oldest are removed.
void WriteHashCache(const std::filesystem::path& folder, const FileKey& key,
                    std::span<const CachedHash> hashes);

inline constexpr size_t kHashCacheEntriesMax = 1024;

}  // namespace sixfold
