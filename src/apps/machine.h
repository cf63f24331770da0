// This machine beside the limits of base/machine.h: its processor and its ports. Linux only.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace sixfold::apps {

// "Intel(R) Xeon(R) …", "" when unknown.
std::string CpuName();
// Why a server could not listen there now, as gateway/listen_error.h says it.
Status CheckPort(const std::string& host, uint16_t port);

}  // namespace sixfold::apps
