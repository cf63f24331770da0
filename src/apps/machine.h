// What this process may use of the machine: cores, memory, limits. Linux only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace sixfold::apps {

// Cores that the scheduler lets this process run on, cut to the control group's quota; at least 1.
int UsableCores();
int PresentCores();
// "Intel(R) Xeon(R) …", "" when unknown.
std::string CpuName();
// Bytes; nullopt when unknown.
std::optional<int64_t> TotalMemoryBytes();
// The control group's memory limit, nullopt for none.
std::optional<int64_t> MemoryLimitBytes();
// kUnavailable when a numeric IPv4 `host` refuses a listener on the port now; other hosts and port
// 0 are left to the server.
Status CheckPort(const std::string& host, uint16_t port);
// The first line of a small file such as those under /proc and /sys, "" when it cannot be read.
std::string FirstLine(const char* path);

}  // namespace sixfold::apps
