#include "weights/weights_hash_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

namespace sixfold {

namespace fs = std::filesystem;

namespace {

// Raised whenever the tree or the layout of an entry changes.
constexpr std::string_view kMagic = "sixfold hash 1\n";
constexpr uint64_t kEntryBytesMax = uint64_t{64} << 20;  // 2^20 tensors

fs::path EntryPath(const fs::path& folder, const std::string& path) {
  const Digest256 name = Sha256().Add(path).Finish();
  return folder / (HexText(std::span(name).first(16)) + ".hash");
}

void Append(std::string* out, const void* data, size_t bytes) {
  out->append(static_cast<const char*>(data), bytes);
}

// Everything before the hashes: only an entry that begins exactly so is of this state of the file.
std::string HeadOf(const FileKey& key) {
  std::string head(kMagic);
  const uint64_t numbers[] = {key.path.size(), key.bytes, static_cast<uint64_t>(key.mtime_ns),
                              key.inode};
  Append(&head, numbers, sizeof numbers);
  return head + key.path;
}

Digest256 CheckSum(std::string_view text) { return Sha256().Add(text).Finish(); }

std::string ReadEntry(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kEntryBytesMax || error)
    return "";
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

void RemoveOldest(const fs::path& folder) {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().find(".hash") == std::string::npos) continue;
    std::error_code gone;
    const auto time = fs::last_write_time(it->path(), gone);
    if (!gone) entries.emplace_back(time, it->path());
  }
  if (entries.size() <= kHashCacheEntriesMax) return;
  std::sort(entries.begin(), entries.end());
  for (size_t i = 0; i < entries.size() - kHashCacheEntriesMax; ++i)
    fs::remove(entries[i].second, error);
}

}  // namespace

std::vector<CachedHash> ReadHashCache(const fs::path& folder, const FileKey& key) {
  try {
    const std::string entry = ReadEntry(EntryPath(folder, key.path));
    const std::string head = HeadOf(key);
    constexpr size_t kSum = sizeof(Digest256);
    if (entry.size() < head.size() + kSum || !entry.starts_with(head)) return {};
    const std::string_view body = std::string_view(entry).substr(0, entry.size() - kSum);
    const Digest256 sum = CheckSum(body);
    const std::string_view hashes = body.substr(head.size());
    if (std::memcmp(sum.data(), entry.data() + body.size(), kSum) != 0 ||
        hashes.size() % sizeof(CachedHash) != 0)
      return {};
    std::vector<CachedHash> out(hashes.size() / sizeof(CachedHash));
    if (!out.empty()) std::memcpy(out.data(), hashes.data(), hashes.size());
    return out;
  } catch (const std::bad_alloc&) {
    return {};
  }
}

void WriteHashCache(const fs::path& folder, const FileKey& key,
                    std::span<const CachedHash> hashes) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return;
  std::string entry = HeadOf(key);
  Append(&entry, hashes.data(), hashes.size_bytes());
  const Digest256 sum = CheckSum(entry);
  Append(&entry, sum.data(), sum.size());
  if (entry.size() > kEntryBytesMax) return;
  const fs::path path = EntryPath(folder, key.path);
  std::string temporary = path.string() + ".XXXXXX";
  const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return;
  const bool written = WriteAll(fd, entry);
  if (::close(fd) != 0 || !written || ::rename(temporary.c_str(), path.c_str()) != 0)
    ::unlink(temporary.c_str());
  RemoveOldest(folder);
}

}  // namespace sixfold
