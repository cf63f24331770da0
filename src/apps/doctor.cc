// sixfold doctor: what this machine gives, and what to do where it gives too little.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/commands.h"
#include "apps/loading.h"
#include "apps/machine.h"
#include "apps/output.h"
#include "engine/memory.h"
#include "kernels/numerics.h"

namespace sixfold::apps {
namespace {

struct Finding {
  std::string name;
  bool good = true;
  std::string value;
  std::string advice;  // empty when good
};

Finding Cores() {
  const int usable = UsableCores(), present = PresentCores();
  Finding finding{"cores", true, fmt::format("{} of {} usable, {}", usable, present, CpuName()),
                  ""};
  if (usable < present) {
    finding.advice =
        "affinity or a control group limits this process; --threads follows the usable ones";
  }
  return finding;
}

Finding Instructions() {
  const Isa isa = DetectIsa();
  Finding finding{"instructions", isa >= Isa::kAvx2, std::string(NameOf(isa)), ""};
  if (!finding.good) finding.advice = "no AVX2: plain loops are used, many times slower";
  return finding;
}

Finding Memory() {
  const int64_t available = AvailableMemoryBytes();
  const auto total = TotalMemoryBytes();
  const auto limit = MemoryLimitBytes();
  Finding finding{"memory", true, "", ""};
  finding.value =
      fmt::format("{} free", available > 0 ? BytesText(static_cast<double>(available)) : "unknown");
  if (total) finding.value += fmt::format(" of {}", BytesText(static_cast<double>(*total)));
  if (limit)
    finding.value +=
        fmt::format(", control group limit {}", BytesText(static_cast<double>(*limit)));
  if (available > 0 && available < int64_t{1} << 30) {
    finding.good = false;
    finding.advice = "under 1 GiB: close other programs, or serve with a small --kv-cache-memory";
  }
  return finding;
}

Finding HugePages() {
  const std::string modes = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  Finding finding{"huge pages", true, modes.empty() ? "unknown" : modes, ""};
  if (modes.find("[never]") != std::string::npos) {
    finding.good = false;
    finding.advice =
        "weights stream at about half speed from 4 KiB pages: "
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)";
  }
  return finding;
}

Finding Overcommit() {
  const std::string mode = FirstLine("/proc/sys/vm/overcommit_memory");
  Finding finding{"overcommit", mode != "2",
                  mode == "2"    ? "strict"
                  : mode.empty() ? "unknown"
                                 : "normal",
                  ""};
  if (!finding.good)
    finding.advice = "mapped weight files do not count, K/V memory does: set --kv-cache-memory";
  return finding;
}

std::string LimitText(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : CountText(static_cast<int64_t>(limit));
}

Finding OpenFiles() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{"open files", limit.rlim_cur >= 4096, "limit " + LimitText(limit.rlim_cur), ""};
  if (!finding.good) {
    finding.advice = fmt::format("a server takes one a client: ulimit -n {}",
                                 std::min<rlim_t>(limit.rlim_max, 65536));
  }
  return finding;
}

Finding AddressSpace() {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  Finding finding{"address space", limit.rlim_cur == RLIM_INFINITY, "", ""};
  finding.value = limit.rlim_cur == RLIM_INFINITY
                      ? "unlimited"
                      : "limit " + BytesText(static_cast<double>(limit.rlim_cur));
  if (!finding.good) finding.advice = "weights are mapped as a whole: ulimit -v unlimited";
  return finding;
}

Finding NumaNodes() {
  int nodes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    nodes += name.rfind("node", 0) == 0 && name.size() > 4 &&
             std::isdigit(static_cast<unsigned char>(name[4])) != 0;
  }
  Finding finding{"memory nodes", nodes <= 1, nodes == 0 ? "unknown" : std::to_string(nodes), ""};
  if (nodes > 1)
    finding.advice =
        "keep one process on one node: numactl --cpunodebind=0 --membind=0 sixfold serve …";
  return finding;
}

Finding Governor() {
  const std::string governor = FirstLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  Finding finding{"clock", governor != "powersave", governor.empty() ? "not ours to set" : governor,
                  ""};
  if (!finding.good)
    finding.advice = "cpupower frequency-set -g performance (as root) for steady figures";
  return finding;
}

Finding Port(int64_t port) {
  const Status status = CheckPort("127.0.0.1", static_cast<uint16_t>(port));
  if (status.ok()) return {"port", true, fmt::format("{} is free", port), ""};
  return {"port", false, fmt::format("{} is taken", port), status.message()};
}

Finding DefaultModel() {
  const std::optional<std::string> path = DefaultModelPath();
  if (path) return {"default model", true, *path, ""};
  return {"default model", true, "not here",
          "`make run` or tools/fetch_default_model.sh fetches it (98 MB)"};
}

}  // namespace

Status RunDoctor(const Options& options) {
  const std::vector<Finding> findings = {
      Cores(),        Instructions(),
      Memory(),       HugePages(),
      Overcommit(),   OpenFiles(),
      AddressSpace(), NumaNodes(),
      Governor(),     Port(options.Integer("port")),
      DefaultModel(), {"libraries", true, SIXFOLD_LIBRARIES, ""},
  };
  if (options.Flag("json")) {
    nlohmann::ordered_json checks = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      checks.push_back({{"check", finding.name},
                        {"ok", finding.good},
                        {"value", finding.value},
                        {"advice", finding.advice}});
    }
    const nlohmann::ordered_json all = {{"version", SIXFOLD_VERSION},
                                        {"checks", std::move(checks)}};
    return Print(all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  std::string text = "sixfold " SIXFOLD_VERSION "\n";
  int warnings = 0;
  for (const Finding& finding : findings) {
    warnings += finding.good ? 0 : 1;
    text +=
        fmt::format("{}  {:<14} {}\n", finding.good ? "ok  " : "warn", finding.name, finding.value);
    if (!finding.advice.empty()) text += fmt::format("{:21}→ {}\n", "", finding.advice);
  }
  text += warnings == 0 ? "All good.\n" : fmt::format("{} to look at.\n", warnings);
  return Print(text);
}

}  // namespace sixfold::apps
