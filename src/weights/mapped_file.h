// One file mapped for reading.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace sixfold {

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
  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives the memory behind the whole pages of `part` back to the kernel; the bytes stay readable.
  void DropPages(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace sixfold
