// sixfold doctor: what this machine gives, and what to do where it gives too little.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/build_info.h"
#include "apps/commands.h"
#include "apps/loading.h"
#include "apps/machine.h"
#include "apps/output.h"
#include "base/core_load.h"
#include "base/machine.h"
#include "kernels/numerics.h"

namespace sixfold::apps {
namespace {

struct Finding {
  std::string name;
  bool good = true;
  std::string value;
  std::string advice;  // empty when good
};

// How long the processors are watched for other programs' work.
constexpr std::chrono::milliseconds kLoadPeriod{200};

std::string Size(int64_t bytes) { return BytesText(static_cast<double>(bytes)); }

Finding Cores(const CoreLimits& cores) {
  Finding finding{"cores", true, fmt::format("{} of {} usable", cores.usable(), cores.present), ""};
  if (cores.allowed < cores.present)
    finding.value += fmt::format(", affinity and cpusets leave {}", cores.allowed);
  if (cores.quota > 0) finding.value += fmt::format(", control group quota {:.4g}", cores.quota);
  if (const std::string name = CpuName(); !name.empty()) finding.value += ", " + name;
  if (cores.usable() < cores.present)
    finding.advice = "this process is limited; --threads follows the usable cores";
  return finding;
}

Finding Quota(const CoreLimits& cores) {
  if (cores.quota <= 0) return {"CPU quota", true, "none", ""};
  Finding finding{"CPU quota", true,
                  fmt::format("{:.4g} cores, of {}; reached in {} of {} periods, waited {:.1f} s",
                              cores.quota, cores.quota_folder, CountText(cores.throttled_periods),
                              CountText(cores.periods), cores.throttled_seconds),
                  ""};
  // A tenth of the periods: each stops every thread for the rest of it.
  finding.good = cores.throttled_periods * 10 <= cores.periods;
  if (!finding.good)
    finding.advice = "the group computes more than it may: fewer --threads, or a larger quota";
  return finding;
}

std::string LoadAverage() {
  const std::string line = FirstLine("/proc/loadavg");
  size_t end = 0;
  for (int i = 0; i < 3 && end != std::string::npos; ++i) end = line.find(' ', end + 1);
  return line.substr(0, end);
}

Finding Load(const CoreLimits& cores, const CoreLoad& load) {
  if (!load.known) return {"other load", true, "unknown", ""};
  Finding finding{"other load", true,
                  fmt::format("{:.1f} of {} cores busy", load.busy_cores, cores.allowed), ""};
  if (load.stolen_cores >= 0.05)
    finding.value += fmt::format(", {:.1f} taken by the host", load.stolen_cores);
  if (const std::string average = LoadAverage(); !average.empty())
    finding.value += ", load average " + average;
  // What is left without slowing anybody down.
  finding.good = cores.allowed - load.busy_cores - load.stolen_cores >= cores.usable() - 0.3;
  if (!finding.good) {
    finding.advice =
        "other programs compute on these cores: end them, or give --threads what they leave";
  }
  return finding;
}

Finding Instructions() {
  const Isa isa = DetectIsa();
  Finding finding{"instructions", isa >= Isa::kAvx2, std::string(NameOf(isa)), ""};
  if (!finding.good) finding.advice = "no AVX2: plain loops are used, many times slower";
  return finding;
}

Finding Memory(const MemoryLimits& memory) {
  const int64_t available = memory.available();
  Finding finding{"memory", true,
                  (available > 0 ? Size(available) : std::string("unknown")) + " available", ""};
  if (memory.total > 0)
    finding.value += fmt::format(", {} of {} free", Size(memory.free), Size(memory.total));
  if (!memory.limit_folder.empty()) {
    finding.value += fmt::format(", control group limit {}, {} used, of {}", Size(memory.limit),
                                 Size(memory.used), memory.limit_folder);
  }
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

Finding Mpi(const BuildInfo& build) {
  if (!build.mpi.empty()) return {"MPI", true, build.mpi, ""};
  return {"MPI", true, "not built in",
          "ranks are threads of one process; for several machines install libopenmpi-dev and build "
          "again"};
}

std::string Text(const std::vector<Finding>& findings) {
  std::string text = VersionText() + "\n";
  int warnings = 0;
  for (const Finding& finding : findings) {
    warnings += finding.good ? 0 : 1;
    text +=
        fmt::format("{}  {:<14} {}\n", finding.good ? "ok  " : "warn", finding.name, finding.value);
    if (!finding.advice.empty()) text += fmt::format("{:21}→ {}\n", "", finding.advice);
  }
  return text + (warnings == 0 ? "All good.\n" : fmt::format("{} to look at.\n", warnings));
}

// Null stands for "no limit" and "not known".
template <typename T>
nlohmann::ordered_json OrNull(bool there, const T& value) {
  return there ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

nlohmann::ordered_json LimitsJson(const CoreLimits& cores, const MemoryLimits& memory,
                                  const CoreLoad& load) {
  const bool quota = cores.quota > 0, limit = !memory.limit_folder.empty();
  return {{"cores_present", cores.present},
          {"cores_allowed", cores.allowed},
          {"cores_quota", OrNull(quota, cores.quota)},
          {"cores_quota_group", OrNull(quota, cores.quota_folder)},
          {"cores_usable", cores.usable()},
          {"quota_periods", cores.periods},
          {"quota_periods_throttled", cores.throttled_periods},
          {"quota_throttled_s", cores.throttled_seconds},
          {"other_load_cores", OrNull(load.known, load.busy_cores)},
          {"stolen_cores", OrNull(load.known, load.stolen_cores)},
          {"load_average", LoadAverage()},
          {"memory_total_bytes", OrNull(memory.total > 0, memory.total)},
          {"memory_free_bytes", OrNull(memory.free > 0, memory.free)},
          {"memory_limit_bytes", OrNull(limit, memory.limit)},
          {"memory_limit_group", OrNull(limit, memory.limit_folder)},
          {"memory_used_bytes", OrNull(limit, memory.used)},
          {"memory_available_bytes", OrNull(memory.available() > 0, memory.available())}};
}

}  // namespace

Status RunDoctor(const Options& options) {
  const CoreLimits cores = ReadCoreLimits();
  const MemoryLimits memory = ReadMemoryLimits();
  const CoreLoad load = MeasureLoad(kLoadPeriod, cores.allowed_cpus);
  const BuildInfo build = GetBuildInfo();
  const std::vector<Finding> findings = {
      Cores(cores),   Quota(cores),   Load(cores, load),
      Instructions(), Memory(memory), HugePages(),
      Overcommit(),   OpenFiles(),    AddressSpace(),
      NumaNodes(),    Governor(),     Port(options.Integer("port")),
      DefaultModel(), Mpi(build),     {"libraries", true, SIXFOLD_LIBRARIES, ""},
  };
  if (!options.Flag("json")) return Print(Text(findings));
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    checks.push_back({{"check", finding.name},
                      {"ok", finding.good},
                      {"value", finding.value},
                      {"advice", finding.advice}});
  }
  const nlohmann::ordered_json all = {{"version", build.version},
                                      {"commit", build.commit},
                                      {"build", build.type},
                                      {"compiler", build.compiler},
                                      {"mpi", OrNull(!build.mpi.empty(), build.mpi)},
                                      {"isa", build.isa},
                                      {"limits", LimitsJson(cores, memory, load)},
                                      {"checks", std::move(checks)}};
  return Print(all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace sixfold::apps
