// One rank's outgoing end of an emulated link: when what it sends would arrive.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "comm/watch.h"
#include "mesh/cluster.h"

namespace sixfold::local {

// Thread rule: the sender's step thread.
class EmulatedPort {
 public:
  EmulatedPort() = default;
  explicit EmulatedPort(const Link& link)
      : ns_per_byte_(link.bandwidth_gb_s > 0 ? 1 / link.bandwidth_gb_s : 0), latency_(Span(link.latency_us * 1e3)) {}

  // Queues `bytes` behind what is under way; returns when the last of them arrives.
  SteadyClock::time_point Carry(size_t bytes, SteadyClock::time_point now) {
    free_ = std::max(free_, now) + Span(static_cast<double>(bytes) * ns_per_byte_);
    return free_ + latency_;
  }

 private:
  // A day at most: what a file says must not overflow the clock.
  static std::chrono::nanoseconds Span(double ns) {
    return std::chrono::nanoseconds(static_cast<int64_t>(std::clamp(ns, 0.0, 86'400e9)));
  }

  double ns_per_byte_ = 0;
  std::chrono::nanoseconds latency_{};
  SteadyClock::time_point free_{};
};

}  // namespace sixfold::local
