#include "apps/history_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace sixfold::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr mode_t kOwnerOnly = 0600, kOwnersFolder = 0700;

// Closes on leaving.
struct Descriptor {
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

// The last `bytes_max` bytes of a regular file, from the start of a line.
std::string ReadTail(const std::string& path, off_t bytes_max, off_t* size) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) return "";
  *size = info.st_size;
  const off_t start = std::max<off_t>(info.st_size - bytes_max, 0);
  std::string text(static_cast<size_t>(info.st_size - start), '\0');
  const ssize_t got = ::pread(file.fd, text.data(), text.size(), start);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (start > 0) text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  return text;
}

// Lines that are no JSON strings are left out.
std::vector<std::string> EntriesOf(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const json line = json::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (line.is_string() && !line.get_ref<const std::string&>().empty())
      entries.push_back(line.get<std::string>());
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return entries;
}

std::string LineOf(const std::string& entry) {
  return json(entry).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// Another file takes the place of the old one, so that no failure loses both.
void Replace(const std::string& path, const std::vector<std::string>& entries) {
  const std::string other = path + "." + std::to_string(::getpid());
  {
    const Descriptor file(
        ::open(other.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly));
    if (file.fd < 0) return;
    std::string text;
    for (const std::string& entry : entries) text += LineOf(entry);
    if (WriteAll(file.fd, text) && ::rename(other.c_str(), path.c_str()) == 0) return;
  }
  ::unlink(other.c_str());
}

}  // namespace

std::string HistoryFile::DefaultPath() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  // The XDG rules: a path that is not absolute does not count.
  if (state != nullptr && *state == '/') return std::string(state) + "/sixfold/run_history";
  if (home != nullptr && *home == '/')
    return std::string(home) + "/.local/state/sixfold/run_history";
  return "";
}

std::vector<std::string> HistoryFile::Load() const {
  if (path_.empty()) return {};
  off_t size = 0;
  std::vector<std::string> entries = EntriesOf(ReadTail(path_, kBytesMax, &size));
  const bool grown = entries.size() > 2 * kEntriesMax || size > static_cast<off_t>(kBytesMax);
  if (entries.size() > kEntriesMax) entries.erase(entries.begin(), entries.end() - kEntriesMax);
  // Half of the bytes, so that not every chat cuts again.
  size_t bytes = 0;
  size_t kept = entries.size();
  while (kept > 0 && bytes + entries[kept - 1].size() <= kBytesMax / 2)
    bytes += entries[--kept].size();
  entries.erase(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(kept));
  if (grown) Replace(path_, entries);
  return entries;
}

void HistoryFile::Add(const std::string& text) const {
  if (path_.empty() || text.empty() || text.size() > kEntryBytesMax) return;
  const fs::path folder = fs::path(path_).parent_path();
  std::error_code ignored;
  fs::create_directories(folder.parent_path(), ignored);
  ::mkdir(folder.c_str(), kOwnersFolder);
  const Descriptor file(::open(path_.c_str(),
                               O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                               kOwnerOnly));
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) return;
  if (info.st_uid == ::geteuid() && (info.st_mode & 077) != 0) ::fchmod(file.fd, kOwnerOnly);
  static_cast<void>(WriteAll(file.fd, LineOf(text)));
  if (info.st_size > static_cast<off_t>(2 * kBytesMax)) Load();
}

}  // namespace sixfold::apps
