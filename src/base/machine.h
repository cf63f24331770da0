// What this process may use of the machine: cores and memory, within affinity, cpusets and control
// groups (version 1, version 2 or both, however deep: containers, Slurm, slices of systemd). Linux
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sixfold {

struct CoreLimits {
  int present = 1;                // online in the machine
  int allowed = 1;                // by affinity and cpusets
  std::vector<int> allowed_cpus;  // their numbers; empty: not known
  double quota = 0;          // the smallest quota of CPU time over the groups, in cores; 0: none
  std::string quota_folder;  // whose
  // Of the group with the quota, since it was made: periods in which work was waiting, those of
  // them that ran into the quota, and how long.
  int64_t periods = 0, throttled_periods = 0;
  double throttled_seconds = 0;

  // Threads that can run side by side: at least 1; a part of a core counts as one.
  int usable() const { return Share(1, 1); }
  // Those of one of several processes: `on_these` may run on (some of) the allowed cores, `together`
  // share the quota; both count this one.
  int Share(int on_these, int together) const;
};

struct MemoryLimits {
  int64_t total = 0, free = 0;  // MemTotal and MemAvailable; 0: not known
  // Of the group that leaves the least room: its limit (the lower one of memory.max and
  // memory.high) and what it uses, without what the kernel gives back by itself when asked for more
  // (cached files). 0: no group has a limit.
  int64_t limit = 0, used = 0;
  std::string limit_folder;  // whose

  // What may still be taken; 0: not known, else at least 1.
  int64_t available() const;
};

// `root` is where the machine's / is: "" for this machine, the folder of a made-up one in tests.
// What cannot be read limits nothing.
CoreLimits ReadCoreLimits(const std::string& root = "");
MemoryLimits ReadMemoryLimits(const std::string& root = "");

inline int UsableCores() { return ReadCoreLimits().usable(); }
inline int64_t AvailableMemoryBytes() { return ReadMemoryLimits().available(); }

// The groups of this process that say something about `controller` ("cpu", "memory", "cpuset"): its
// own folder first, then each ancestor's up to where the hierarchy is mounted.
struct GroupFolders {
  enum class Version : uint8_t { kV1, kV2 };
  Version version = Version::kV2;
  std::vector<std::string> folders;
};
std::vector<GroupFolders> FindGroups(const std::string& controller, const std::string& root = "");

// The first line of a small file such as those under /proc and /sys, "" when it cannot be read.
std::string FirstLine(const std::string& path);
// The whole number behind `key` in a file of lines "key value" or "key: value kB", in the file's
// unit.
std::optional<int64_t> NumberAt(const std::string& path, const std::string& key);
// The numbers of a list such as "0-3,8", in order; none for what is no list.
std::vector<int> ParseCpuList(const std::string& list);

}  // namespace sixfold
