// This machine beside the limits of base/machine.h: its processor and its ports. Linux only.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace sixfold::apps {

// "Intel(R) Xeon(R) …", "" when unknown.
std::string CpuName();
// kUnavailable when a numeric IPv4 `host` refuses a listener on the port now; other hosts and port
// 0 are left to the server.
Status CheckPort(const std::string& host, uint16_t port);

}  // namespace sixfold::apps
