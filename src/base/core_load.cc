#include "base/core_load.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

namespace sixfold {
namespace {

// Clock ticks of one processor in /proc/stat.
struct CpuTicks {
  double busy = 0, stolen = 0, total = 0;
};

// proc(5): "cpu3 user nice system idle iowait irq softirq steal guest guest_nice"; guests are part
// of user and nice.
std::map<int, CpuTicks> ParseStat(const std::string& text) {
  std::map<int, CpuTicks> ticks;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    int cpu = 0, begin = 0;
    const bool of_one = line.size() > 3 && line[3] >= '0' && line[3] <= '9';  // "cpu " is of all
    if (!of_one || std::sscanf(line.c_str(), "cpu%d%n", &cpu, &begin) != 1) continue;
    std::istringstream numbers(line.substr(static_cast<size_t>(begin)));
    double value[8] = {};
    for (double& number : value) numbers >> number;
    const auto& [user, nice, system, idle, iowait, irq, softirq, steal] = value;
    const double busy = user + nice + system + irq + softirq;
    ticks[cpu] = {.busy = busy, .stolen = steal, .total = busy + steal + idle + iowait};
  }
  return ticks;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

CoreLoad LoadBetween(const std::string& before, const std::string& after,
                     const std::vector<int>& cpus) {
  const std::map<int, CpuTicks> first = ParseStat(before), second = ParseStat(after);
  CoreLoad load;
  for (const auto& [cpu, then] : second) {
    if (!cpus.empty() && std::find(cpus.begin(), cpus.end(), cpu) == cpus.end()) continue;
    const auto found = first.find(cpu);
    if (found == first.end() || then.total <= found->second.total) continue;
    const double total = then.total - found->second.total;
    load.known = true;
    load.busy_cores += std::clamp((then.busy - found->second.busy) / total, 0.0, 1.0);
    load.stolen_cores += std::clamp((then.stolen - found->second.stolen) / total, 0.0, 1.0);
  }
  return load;
}

CoreLoad MeasureLoad(std::chrono::milliseconds period, const std::vector<int>& cpus) {
  const std::string before = ReadAll("/proc/stat");
  std::this_thread::sleep_for(period);
  return LoadBetween(before, ReadAll("/proc/stat"), cpus);
}

}  // namespace sixfold
