#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>

namespace sixfold {

namespace {

std::string SystemText(int error) { return std::generic_category().message(error); }

// What a file that is no regular one is called.
const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no regular file";
}

Status CheckRegular(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    return InvalidFile(path + ": is " + KindOf(info.st_mode) + ", a regular file was expected");
  }
  if (info.st_size == 0) return InvalidFile(path + ": is empty (0 bytes)");
  if (static_cast<uint64_t>(info.st_size) > std::numeric_limits<size_t>::max() / 2) {
    return InvalidFile(path + ": is larger than this machine can map");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::Open(const std::filesystem::path& path) {
  std::unique_ptr<MappedFile> file(new MappedFile);
  file->path_ = path.string();
  // O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
  const int fd = ::open(file->path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return InvalidFile(file->path_ + ": cannot be opened: " + SystemText(errno));
  struct stat info = {};
  Status status = ::fstat(fd, &info) == 0
                      ? CheckRegular(file->path_, info)
                      : InvalidFile(file->path_ + ": cannot be examined: " + SystemText(errno));
  if (status.ok()) {
    const auto size = static_cast<size_t>(info.st_size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data != MAP_FAILED) {
      file->bytes_ = {static_cast<const std::byte*>(data), size};
    } else if (errno == ENOMEM) {
      status = OutOfMemory(file->path_ + ": " + std::to_string(size) +
                           " bytes do not fit in the address space (ulimit -v)");
    } else {
      status = InvalidFile(file->path_ + ": cannot be mapped: " + SystemText(errno));
    }
  }
  ::close(fd);
  if (!status.ok()) return status;
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void MappedFile::DropPages(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  // A kernel that refuses keeps the pages: nothing else changes.
  if (begin < end) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace sixfold
