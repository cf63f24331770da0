#include "apps/machine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace sixfold::apps {
namespace {

// Quota of the control group in whole cores, rounded up; 0 for none.
int QuotaCores() {
  // cgroup 2: "max 100000" or "150000 100000"; cgroup 1 has the two numbers in two files.
  std::string quota_text = FirstLine("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0, period = 0;
  if (!quota_text.empty()) {
    const size_t space = quota_text.find(' ');
    quota = std::atoll(quota_text.c_str());
    period = space == std::string::npos ? 0 : std::atoll(quota_text.c_str() + space);
  } else {
    quota = std::atoll(FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").c_str());
    period = std::atoll(FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_period_us").c_str());
  }
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((quota + period - 1) / period, 1 << 20));
}

// The number behind `key` in /proc/meminfo, in bytes.
std::optional<int64_t> MemInfoBytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int PresentCores() { return std::max<int>(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))); }

int UsableCores() {
  int cores = PresentCores();
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  const int quota = QuotaCores();
  return quota > 0 ? std::min(cores, quota) : cores;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "";
}

Status CheckPort(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (port == 0 || ::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return OkStatus();
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return OkStatus();
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int error =
      ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  if (error == 0 && ::listen(fd, 1) != 0) error = errno;
  ::close(fd);
  if (error == 0) return OkStatus();
  return {StatusCode::kUnavailable,
          "cannot listen on " + host + ":" + std::to_string(port) + ": " + std::strerror(error) +
              "; choose another port with --port, or --port 0 for any free one"};
}

std::optional<int64_t> TotalMemoryBytes() { return MemInfoBytes("MemTotal"); }

std::optional<int64_t> MemoryLimitBytes() {
  std::string limit = FirstLine("/sys/fs/cgroup/memory.max");
  if (limit.empty()) limit = FirstLine("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  const int64_t bytes = std::atoll(limit.c_str());
  // cgroup 1 writes a number near 2^63 for no limit.
  if (bytes <= 0 || bytes > (int64_t{1} << 60)) return std::nullopt;
  return bytes;
}

}  // namespace sixfold::apps
