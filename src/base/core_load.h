// How busy the processors are. Linux only.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace sixfold {

// What the processors did in a period, in cores.
struct CoreLoad {
  bool known = false;
  double busy_cores = 0;    // computed, for anybody
  double stolen_cores = 0;  // taken by the host for other virtual machines
};
// Of `cpus`, or of all when it is empty, while this thread sleeps.
CoreLoad MeasureLoad(std::chrono::milliseconds period, const std::vector<int>& cpus);
// The same from two texts of /proc/stat.
CoreLoad LoadBetween(const std::string& before, const std::string& after,
                     const std::vector<int>& cpus);

}  // namespace sixfold
