#include "base/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/core_load.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The files of /proc and /sys of a machine that is not there.
class MadeUpMachine {
 public:
  explicit MadeUpMachine(const std::map<std::string, std::string>& files)
      : root_(fs::temp_directory_path() / ("machine_test_" + std::to_string(::getpid()) + "_" +
                                           std::to_string(reinterpret_cast<uintptr_t>(this)))) {
    Write({{"/sys/devices/system/cpu/online", "0-63"},
           {"/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-127\n"},
           {"/proc/meminfo", "MemTotal: 262144 kB\nMemFree: 1 kB\nMemAvailable: 204800 kB\n"}});
    Write(files);
  }
  ~MadeUpMachine() { fs::remove_all(root_); }

  CoreLimits cores() const { return ReadCoreLimits(root_.string()); }
  MemoryLimits memory() const { return ReadMemoryLimits(root_.string()); }
  std::string path(const std::string& inside) const { return root_.string() + inside; }

 private:
  void Write(const std::map<std::string, std::string>& files) {
    for (const auto& [name, text] : files) {
      const fs::path file = root_.string() + name;
      fs::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
  }

  const fs::path root_;
};

constexpr const char* kMountV2 =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr int64_t kMiB = 1 << 20;

TEST(Machine, WithoutLimitsEveryOnlineCoreAndAllFreeMemoryCount) {
  const MadeUpMachine machine({});
  EXPECT_EQ(machine.cores().present, 64);
  EXPECT_EQ(machine.cores().usable(), 64);  // the mask also names processors that are not online
  EXPECT_EQ(machine.memory().available(), 200 * kMiB);
  EXPECT_EQ(machine.memory().total, 256 * kMiB);
  EXPECT_EQ(machine.memory().limit_folder, "");
}

// docker run --cpus 2 --memory 100m on 64 cores, control groups of version 2, a namespace of its
// own.
TEST(Machine, AContainerOfVersion2) {
  const MadeUpMachine machine(
      {{"/proc/self/mountinfo", kMountV2},
       {"/proc/self/cgroup", "0::/\n"},
       {"/sys/fs/cgroup/cpu.max", "200000 100000\n"},
       {"/sys/fs/cgroup/cpu.stat",
        "usage_usec 9\nnr_periods 40\nnr_throttled 10\nthrottled_usec 2500000\n"},
       {"/sys/fs/cgroup/memory.max", "104857600\n"},
       {"/sys/fs/cgroup/memory.high", "max\n"},
       {"/sys/fs/cgroup/memory.current", "62914560\n"},
       {"/sys/fs/cgroup/memory.stat",
        "anon 5\nfile 7\ninactive_file 10485760\nactive_file 10485760\n"}});
  EXPECT_EQ(machine.cores().usable(), 2);
  EXPECT_DOUBLE_EQ(machine.cores().quota, 2);
  EXPECT_EQ(machine.cores().quota_folder, machine.path("/sys/fs/cgroup"));
  EXPECT_EQ(machine.cores().throttled_periods, 10);
  EXPECT_EQ(machine.cores().periods, 40);
  EXPECT_DOUBLE_EQ(machine.cores().throttled_seconds, 2.5);
  EXPECT_EQ(machine.memory().limit, 100 * kMiB);
  EXPECT_EQ(machine.memory().used, 40 * kMiB);  // cached files are given back
  EXPECT_EQ(machine.memory().available(), 60 * kMiB);
}

// The same of version 1: mountinfo shows the container's group as the root of the mount, and the
// process's path counts from the machine's root.
TEST(Machine, AContainerOfVersion1) {
  const MadeUpMachine machine(
      {{"/proc/self/mountinfo",
        "31 30 0:28 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        "32 30 0:29 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "33 30 0:30 /docker/ab /sys/fs/cgroup/my\\040cpuset ro - cgroup cgroup rw,cpuset\n"},
       {"/proc/self/cgroup",
        "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n3:cpuset:/docker/ab\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
       {"/sys/fs/cgroup/cpu,cpuacct/cpu.stat",
        "nr_periods 8\nnr_throttled 4\nthrottled_time 500000000\n"},
       {"/sys/fs/cgroup/my cpuset/cpuset.effective_cpus", "0-1,8\n"},
       {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
       {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "20971520\n"},
       {"/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 1\nhierarchical_memory_limit 52428800\ntotal_inactive_file "
        "10485760\ntotal_active_file 0\n"}});
  EXPECT_EQ(machine.cores().allowed, 3);
  EXPECT_DOUBLE_EQ(machine.cores().quota, 2.5);
  EXPECT_EQ(machine.cores().usable(), 3);
  EXPECT_DOUBLE_EQ(machine.cores().throttled_seconds, 0.5);
  EXPECT_EQ(machine.memory().limit, 50 * kMiB);  // of a group that the container does not see
  EXPECT_EQ(machine.memory().available(), 40 * kMiB);
}

TEST(Machine, ALimitOfVersion1WithoutAQuotaIsNone) {
  const MadeUpMachine machine(
      {{"/proc/self/mountinfo", "31 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"},
       {"/proc/self/cgroup", "1:cpu:/\n0::/\n"},
       {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
       {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  EXPECT_EQ(machine.cores().quota, 0);
  EXPECT_EQ(machine.cores().usable(), 64);
}

// A task of Slurm's in version 2: the step's and the job's groups limit it, its own does not.
TEST(Machine, EveryAncestorsLimitCounts) {
  const std::string slurm = "/sys/fs/cgroup/system.slice/slurmstepd.scope", job = slurm + "/job_5",
                    step = job + "/step_0/user", task = step + "/task_0";
  const MadeUpMachine machine(
      {{"/proc/self/mountinfo", kMountV2},
       {"/proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0\n"},
       {task + "/cpu.max", "max 100000\n"},
       {step + "/cpu.max", "800000 100000\n"},
       {job + "/cpu.max", "400000 100000\n"},
       {slurm + "/cpu.max", "600000 100000\n"},
       {job + "/cpuset.cpus.effective", "8-13\n"},
       {task + "/memory.max", "max\n"},
       {task + "/memory.high", "188743680\n"},
       {task + "/memory.current", "1048576\n"},
       {job + "/memory.max", "167772160\n"},
       {job + "/memory.current", "10485760\n"},
       {slurm + "/memory.max", "209715200\n"},
       {slurm + "/memory.current", "104857600\n"}});
  EXPECT_EQ(machine.cores().allowed, 6);
  EXPECT_EQ(machine.cores().usable(), 4);
  EXPECT_EQ(machine.cores().quota_folder, machine.path(job));
  // The job may take 150 MiB more, but all that runs below its ancestor only 100.
  EXPECT_EQ(machine.memory().available(), 100 * kMiB);
  EXPECT_EQ(machine.memory().limit, 200 * kMiB);
  EXPECT_EQ(machine.memory().limit_folder, machine.path(slurm));
}

TEST(Machine, MemoryHighIsALimitToo) {
  const MadeUpMachine machine(
      {{"/proc/self/mountinfo", kMountV2},
       {"/proc/self/cgroup", "0::/user.slice/run-1.scope\n"},
       {"/sys/fs/cgroup/user.slice/run-1.scope/memory.max", "104857600\n"},
       {"/sys/fs/cgroup/user.slice/run-1.scope/memory.high", "52428800\n"}});
  EXPECT_EQ(machine.memory().limit, 50 * kMiB);
  EXPECT_EQ(machine.memory().available(), 50 * kMiB);
}

// Both versions at once, as systemd's hybrid set-up has it.
TEST(Machine, TheVersionsTogether) {
  const MadeUpMachine machine(
      {{"/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw shared:9 master:1 - cgroup cgroup rw,cpu\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "50 31 0:40 / /mnt rw - tmpfs cgroup rw,cpu\n"},
       {"/proc/self/cgroup", "2:cpu:/a/b\n1:name=systemd:/x\n0::/a\n"},
       {"/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "300000\n"},
       {"/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"},
       {"/sys/fs/cgroup/unified/a/memory.max", "1048576\n"}});
  EXPECT_EQ(machine.cores().usable(), 3);
  EXPECT_EQ(machine.memory().available(), kMiB);
}

TEST(Machine, PartsOfACoreCountAsOne) {
  const auto usable = [](const char* cpu_max) {
    return MadeUpMachine({{"/proc/self/mountinfo", kMountV2}, {"/sys/fs/cgroup/cpu.max", cpu_max}})
        .cores()
        .usable();
  };
  EXPECT_EQ(usable("50000 100000"), 1);
  EXPECT_EQ(usable("150000 100000"), 2);
  EXPECT_EQ(usable("1000 100000"), 1);
  EXPECT_EQ(usable("9223372036854775807 1"), 64);
  EXPECT_EQ(usable("max 100000"), 64);
}

TEST(Machine, ProcessesShareWhatTheyHaveInCommon) {
  CoreLimits cores{.present = 64, .allowed = 64};
  EXPECT_EQ(cores.Share(8, 8), 8);  // no binding: all on all cores
  EXPECT_EQ(cores.Share(65, 65), 1);
  cores.allowed = 8;  // srun --cpus-per-task 8: each has its own
  EXPECT_EQ(cores.Share(1, 8), 8);
  EXPECT_EQ(cores.Share(2, 8), 4);  // two on each socket, say
  cores.quota = 16;                 // of the job
  EXPECT_EQ(cores.Share(1, 8), 2);
  EXPECT_EQ(cores.Share(1, 32), 1);
}

TEST(Machine, NothingLeftIsNotUnknown) {
  const MadeUpMachine machine({{"/proc/self/mountinfo", kMountV2},
                               {"/sys/fs/cgroup/memory.max", "1048576\n"},
                               {"/sys/fs/cgroup/memory.current", "2097152\n"}});
  EXPECT_EQ(machine.memory().available(), 1);
  const MadeUpMachine zero(
      {{"/proc/self/mountinfo", kMountV2}, {"/sys/fs/cgroup/memory.max", "0\n"}});
  EXPECT_EQ(zero.memory().available(), 1);
}

TEST(Machine, NonsenseLimitsNothing) {
  const MadeUpMachine machine(
      {{"/proc/self/mountinfo",
        std::string("x - cgroup\n - cgroup2\n1 2 3 / - cgroup2 a rw\n") + kMountV2},
       {"/proc/self/cgroup", "0::/../../elsewhere\nzzz\n:\n"},
       {"/proc/self/status", "Cpus_allowed_list:\t9-3,x\n"},
       {"/sys/fs/cgroup/cpu.max", "two\n"},
       {"/sys/fs/cgroup/memory.max", "\n"},
       {"/sys/fs/cgroup/memory.high", "-5\n"}});
  EXPECT_EQ(machine.cores().usable(), 64);
  EXPECT_EQ(machine.memory().available(), 200 * kMiB);
  EXPECT_EQ(ReadCoreLimits("/no/such/root").usable(), 1);
  EXPECT_EQ(ReadMemoryLimits("/no/such/root").available(), 0);
}

TEST(Machine, CpuLists) {
  EXPECT_THAT(ParseCpuList("0-2,8,\t5"), ElementsAre(0, 1, 2, 5, 8));
  EXPECT_THAT(ParseCpuList("3\n"), ElementsAre(3));
  for (const char* none : {"", "a", "3-1", "-1", "0-99999999999", "1,,2"})
    EXPECT_THAT(ParseCpuList(none), IsEmpty()) << none;
}

// Processor 0 computes for half of the period, 1 is idle or waits, 2 is taken by the host.
TEST(CoreLoad, CountsTheAllowedCoresOnly) {
  const std::string before =
      "cpu  300 0 0 0 0 0 0 0 0 0\ncpu0 100 0 0 100 0 0 0 0 0 0\ncpu1 100 0 0 50 0 0 0 0 0 0\n"
      "cpu2 100 0 0 0 0 0 0 0 0 0\nintr 5\n";
  const std::string after =
      "cpu  400 0 0 0 0 0 0 0 0 0\ncpu0 120 10 15 150 0 3 2 0 20 10\ncpu1 100 0 0 100 50 0 0 0 0 "
      "0\n"
      "cpu2 100 0 0 0 0 0 0 100 0 0\nintr 6\n";
  const CoreLoad all = LoadBetween(before, after, {});
  EXPECT_TRUE(all.known);
  EXPECT_DOUBLE_EQ(all.busy_cores, 0.5);
  EXPECT_DOUBLE_EQ(all.stolen_cores, 1);
  EXPECT_DOUBLE_EQ(LoadBetween(before, after, {1, 2}).busy_cores, 0);
  EXPECT_DOUBLE_EQ(LoadBetween(before, after, {0, 1}).stolen_cores, 0);
  EXPECT_FALSE(LoadBetween(before, before, {}).known);
  EXPECT_FALSE(LoadBetween("", "cpu0 x\ncpu\ncpu99999999999999 1\n", {}).known);
}

TEST(Machine, ThisOneIsKnown) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LE(ReadCoreLimits().usable(), ReadCoreLimits().present);
}

}  // namespace
}  // namespace sixfold
