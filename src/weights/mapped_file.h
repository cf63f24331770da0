// One file mapped for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"

namespace sixfold {

// Which file it is, and in which state.
struct FileIdentity {
  uint64_t bytes = 0, device = 0, inode = 0;
  int64_t mtime_ns = 0;  // since 1970
  // The last change is long enough ago that another one would have another time.
  bool settled = false;
  bool on_network = false;  // in a file system that many machines see alike

  // nullopt: it cannot be examined.
  static std::optional<FileIdentity> Of(const std::string& path);
};

// Read-only bytes of a regular file, private to this process. Thread-safe. Costs address space, no
// memory, until read.
class MappedFile {
 public:
  // kInvalidFile for anything that is no readable, non-empty regular file (never waits on a pipe);
  // kOutOfMemory when the address space does not hold the file.
  static Result<std::unique_ptr<MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives the memory behind the whole pages of `part` back to the kernel; the bytes stay readable.
  void DropPages(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;

  std::string path_;
  FileIdentity identity_;
  std::span<const std::byte> bytes_;
};

}  // namespace sixfold
