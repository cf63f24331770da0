// What GET /metrics says: latencies and outcomes seen by the gateway, and the engine's counters.
// Each family appears under our name (sixfold_…) and under the one dashboards and endpoint pickers
// know (vllm:…).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace sixfold::gateway {

// Counts of values by upper bound, as Prometheus wants them.
class Histogram {
 public:
  explicit Histogram(
      std::vector<double> bounds);  // ascending; the last bucket, without bound, is implied
  void Observe(double value, uint64_t times = 1);

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }  // [bounds + 1], not cumulative
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

enum class Outcome : uint8_t { kStop, kLength, kAbort, kError };

// What else the page shows, as it is now.
struct MetricsReading {
  EngineStats engine;
  bool engine_up = true;  // false: it has failed and answers nothing
  std::string model_name;
  int connections = 0;
};

// Thread rule: I/O thread only.
class Metrics {
 public:
  Metrics();

  // Seconds, of the times at which tokens were sampled.
  Histogram time_to_first_token;    // from the request's last byte
  Histogram inter_token_latency;    // from one token of a choice to the next
  Histogram time_per_output_token;  // of a finished choice with at least two: the mean of those
  Histogram e2e_request_latency;    // from the request's last byte to its last token; finished requests only
  std::array<uint64_t, 4> choices_finished{};  // by Outcome
  std::map<int, uint64_t> responses;           // by HTTP status
  uint64_t slow_clients = 0;                   // dropped because they did not read

  // The text exposition format (version 0.0.4).
  std::string Render(const MetricsReading& now) const;
};

}  // namespace sixfold::gateway
