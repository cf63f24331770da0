#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace sixfold {
namespace {

using Version = GroupFolders::Version;

// Version 1 writes a number near 2^63 for no limit.
constexpr int64_t kNoLimit = int64_t{1} << 60;
constexpr int kCpusMax = 1 << 20;

// A hierarchy of control groups as it is mounted: `group` of it is to be seen at `folder`.
struct Mount {
  Version version = Version::kV2;
  std::string group, folder;
  std::string options;  // ",cpu,cpuacct,rw,"
};

// "a\040b" as "a b": so mountinfo writes spaces, tabs, line breaks and backslashes.
std::string Unescaped(const std::string& text) {
  const auto is_octal = [&](size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '7';
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && is_octal(i + 1) && is_octal(i + 2) && is_octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// proc(5), /proc/pid/mountinfo: "31 23 0:28 ROOT MOUNT_POINT options [tags] - TYPE source OPTIONS".
std::vector<Mount> MountsOfGroups(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - cgroup");
    if (dash == std::string::npos) continue;
    std::istringstream head(line.substr(0, dash)), tail(line.substr(dash + 3));
    std::string number, parent, device, group, point, type, source, options;
    head >> number >> parent >> device >> group >> point;
    tail >> type >> source >> options;
    if (point.empty() || (type != "cgroup" && type != "cgroup2")) continue;
    mounts.push_back({type == "cgroup2" ? Version::kV2 : Version::kV1, Unescaped(group),
                      Unescaped(point), "," + options + ","});
  }
  // Without a mountinfo: where they are on every machine.
  if (mounts.empty()) {
    mounts.push_back({Version::kV2, "/", "/sys/fs/cgroup", ""});
    for (const char* name : {"cpu", "cpuset", "memory"}) {
      mounts.push_back({Version::kV1, "/", std::string("/sys/fs/cgroup/") + name,
                        std::string(",") + name + ","});
    }
  }
  return mounts;
}

// proc(5), cgroups(7), /proc/pid/cgroup: "4:cpu,cpuacct:/path"; version 2 is "0::/path".
std::optional<std::string> OwnGroup(const std::string& root, Version version,
                                    const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool same =
        version == Version::kV2
            ? line.rfind("0::", 0) == 0
            : ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
    if (same) return line.substr(second + 1);
  }
  return std::nullopt;
}

// From the process's own group up to the one that is mounted. A group outside of what is mounted
// (a namespace of groups that was entered later) leaves the mounted one.
std::vector<std::string> Upwards(const Mount& mount, std::string group) {
  const std::string top = mount.group == "/" ? "" : mount.group;
  const bool inside = group.rfind(top, 0) == 0 &&
                      (group.size() == top.size() || group[top.size()] == '/') &&
                      group.find("/..") == std::string::npos;
  group = inside ? group.substr(top.size()) : "";
  std::vector<std::string> folders;
  while (!group.empty() && group != "/") {
    folders.push_back(mount.folder + group);
    group.resize(group.rfind('/'));
  }
  folders.push_back(mount.folder);
  return folders;
}

std::optional<int64_t> Number(const std::string& text) {
  char* end = nullptr;
  const int64_t number = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str()) return std::nullopt;
  return number;
}

std::optional<int64_t> NumberIn(const std::string& path) { return Number(FirstLine(path)); }

// CPU time per time, in cores; 0: no quota.
double QuotaOf(Version version, const std::string& folder) {
  std::optional<int64_t> quota, period;
  if (version == Version::kV2) {
    const std::string line = FirstLine(folder + "/cpu.max");  // "max 100000" or "150000 100000"
    const size_t space = line.find(' ');
    quota = Number(line);
    period = space == std::string::npos ? 100000 : Number(line.substr(space));
  } else {
    quota = NumberIn(folder + "/cpu.cfs_quota_us");
    period = NumberIn(folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return 0;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

void ReadThrottling(Version version, const std::string& folder, CoreLimits* cores) {
  const std::string file = folder + "/cpu.stat";
  cores->periods = NumberAt(file, "nr_periods").value_or(0);
  cores->throttled_periods = NumberAt(file, "nr_throttled").value_or(0);
  const bool v2 = version == Version::kV2;
  const auto time =
      static_cast<double>(NumberAt(file, v2 ? "throttled_usec" : "throttled_time").value_or(0));
  cores->throttled_seconds = time / (v2 ? 1e6 : 1e9);
}

// Numbers of processors, in order. Empty: not known.
using CpuSet = std::vector<int>;

CpuSet Both(const CpuSet& a, const CpuSet& b) {
  if (a.empty() || b.empty()) return a.empty() ? b : a;
  CpuSet both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

// The call, asked with ever larger sets: glibc's cpu_set_t ends at 1,024 processors.
CpuSet AffinityOfThread() {
  CpuSet cpus;
  for (int size = CPU_SETSIZE; cpus.empty() && size <= kCpusMax; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    CPU_ZERO_S(bytes, set);
    const bool known = ::sched_getaffinity(0, bytes, set) == 0;
    for (int i = 0; known && i < size; ++i) {
      if (CPU_ISSET_S(i, bytes, set)) cpus.push_back(i);
    }
    CPU_FREE(set);
  }
  return cpus;
}

// Of a made-up machine: what its status file says.
CpuSet AffinityOf(const std::string& root) {
  if (root.empty()) return AffinityOfThread();
  std::ifstream file(root + "/proc/self/status");
  constexpr std::string_view kKey = "Cpus_allowed_list:";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kKey, 0) == 0) return ParseCpuList(line.substr(kKey.size()));
  }
  return {};
}

CpuSet CpusetOf(const std::string& root) {
  CpuSet cpus;
  for (const GroupFolders& groups : FindGroups("cpuset", root)) {
    const bool v2 = groups.version == Version::kV2;
    // A group's effective set lies within its ancestors'; where it has no file, they count.
    for (const std::string& folder : groups.folders) {
      CpuSet own = ParseCpuList(
          FirstLine(folder + (v2 ? "/cpuset.cpus.effective" : "/cpuset.effective_cpus")));
      if (own.empty() && !v2) own = ParseCpuList(FirstLine(folder + "/cpuset.cpus"));
      cpus = Both(cpus, own);
    }
  }
  return cpus;
}

struct GroupMemory {
  int64_t limit = 0, used = 0;  // limit 0: none
};

int64_t ReclaimableBytes(const std::string& stat, const std::string& prefix) {
  int64_t bytes = 0;
  for (const char* key : {"inactive_file", "active_file", "slab_reclaimable"})
    bytes += NumberAt(stat, prefix + key).value_or(0);
  return bytes;
}

GroupMemory MemoryOf(Version version, const std::string& folder) {
  const bool v2 = version == Version::kV2;
  const std::string stat = folder + "/memory.stat";
  // memory.high slows a group down so much that it is no less of a limit. Version 1 also knows the
  // limits of ancestors that a container does not see.
  const std::optional<int64_t> limits[] = {
      NumberIn(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes")),
      v2 ? NumberIn(folder + "/memory.high") : NumberAt(stat, "hierarchical_memory_limit")};
  GroupMemory memory{.limit = kNoLimit};
  for (const std::optional<int64_t>& limit : limits) {
    if (limit && *limit >= 0) memory.limit = std::min(memory.limit, *limit);
  }
  const int64_t usage =
      NumberIn(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  memory.used = std::max<int64_t>(0, usage - ReclaimableBytes(stat, v2 ? "" : "total_"));
  return memory;
}

}  // namespace

int CoreLimits::Share(int on_these, int together) const {
  const int own = allowed / std::max(1, on_these);
  if (quota <= 0) return std::max(1, own);
  // A quota of 2 may be read as 2.0000001.
  const double whole = std::ceil(std::min<double>(quota, kCpusMax) - 1e-3);
  return std::max(1, std::min(own, static_cast<int>(whole) / std::max(1, together)));
}

int64_t MemoryLimits::available() const {
  if (limit == 0 && limit_folder.empty()) return free;
  const int64_t room = std::max<int64_t>(1, limit - used);
  return free > 0 ? std::min(free, room) : room;
}

CoreLimits ReadCoreLimits(const std::string& root) {
  CoreLimits cores;
  const CpuSet online = ParseCpuList(FirstLine(root + "/sys/devices/system/cpu/online"));
  // An affinity may name processors that the machine could have and has not.
  const CpuSet allowed = Both(online, Both(AffinityOf(root), CpusetOf(root)));
  const auto present = static_cast<int>(online.empty() ? allowed.size() : online.size());
  const auto configured = root.empty() ? static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)) : 1;
  cores.present = std::max(1, present > 0 ? present : configured);
  cores.allowed = allowed.empty() ? cores.present : static_cast<int>(allowed.size());
  cores.allowed_cpus = allowed;
  for (const GroupFolders& groups : FindGroups("cpu", root)) {
    for (const std::string& folder : groups.folders) {
      const double quota = QuotaOf(groups.version, folder);
      if (quota <= 0 || (cores.quota > 0 && quota >= cores.quota)) continue;
      cores.quota = quota;
      cores.quota_folder = folder;
      ReadThrottling(groups.version, folder, &cores);
    }
  }
  return cores;
}

MemoryLimits ReadMemoryLimits(const std::string& root) {
  MemoryLimits memory;
  const std::string meminfo = root + "/proc/meminfo";
  memory.total = NumberAt(meminfo, "MemTotal").value_or(0) * 1024;
  memory.free = NumberAt(meminfo, "MemAvailable").value_or(0) * 1024;
  for (const GroupFolders& groups : FindGroups("memory", root)) {
    for (const std::string& folder : groups.folders) {
      const GroupMemory group = MemoryOf(groups.version, folder);
      if (group.limit >= kNoLimit) continue;
      const bool first = memory.limit_folder.empty();
      if (!first && group.limit - group.used >= memory.limit - memory.used) continue;
      memory.limit = group.limit;
      memory.used = group.used;
      memory.limit_folder = folder;
    }
  }
  return memory;
}

std::vector<GroupFolders> FindGroups(const std::string& controller, const std::string& root) {
  std::vector<GroupFolders> found;
  for (const Mount& mount : MountsOfGroups(root)) {
    if (mount.version == Version::kV1 &&
        mount.options.find("," + controller + ",") == std::string::npos)
      continue;
    const std::string group = OwnGroup(root, mount.version, controller).value_or("/");
    GroupFolders groups{mount.version, Upwards(mount, group)};
    for (std::string& folder : groups.folders) folder = root + folder;
    found.push_back(std::move(groups));
  }
  return found;
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int64_t> NumberAt(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t end = key.size();
    if (line.rfind(key, 0) != 0 || line.size() <= end || (line[end] != ' ' && line[end] != ':'))
      continue;
    return Number(line.substr(end + 1));
  }
  return std::nullopt;
}

std::vector<int> ParseCpuList(const std::string& list) {
  std::vector<int> cpus;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    const std::optional<int64_t> first = Number(part);
    const size_t dash = part.find('-');
    const std::optional<int64_t> last =
        dash == std::string::npos ? first : Number(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kCpusMax) return {};
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

}  // namespace sixfold
