#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <iterator>
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

FileIdentity IdentityFrom(const struct stat& info, const struct statfs& system) {
  // File systems of clusters, by statfs(2)'s f_type: NFS, SMB, Lustre, CephFS, GPFS, BeeGFS, AFS.
  constexpr uint32_t kNetwork[] = {0x6969,     0xFE534D42, 0x0BD00BD0, 0x00C36400,
                                   0x47504653, 0x19830326, 0x5346414F};
  // Time stamps are as fine as the kernel's tick, at most 10 ms.
  constexpr int64_t kTickNs = 20'000'000;
  FileIdentity identity{
      .bytes = static_cast<uint64_t>(info.st_size),
      .device = info.st_dev,
      .inode = info.st_ino,
      .mtime_ns = info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  identity.settled = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() >
                     identity.mtime_ns + kTickNs;
  identity.on_network = std::find(std::begin(kNetwork), std::end(kNetwork),
                                  static_cast<uint32_t>(system.f_type)) != std::end(kNetwork);
  return identity;
}

}  // namespace

std::optional<FileIdentity> FileIdentity::Of(const std::string& path) {
  struct stat info = {};
  struct statfs system = {};
  if (::stat(path.c_str(), &info) != 0 || ::statfs(path.c_str(), &system) != 0) return std::nullopt;
  return IdentityFrom(info, system);
}

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
  struct statfs system = {};
  if (status.ok() && ::fstatfs(fd, &system) != 0) {
    status = InvalidFile(file->path_ + ": cannot be examined: " + SystemText(errno));
  }
  file->identity_ = IdentityFrom(info, system);
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
