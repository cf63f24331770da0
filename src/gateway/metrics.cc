#include "gateway/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

namespace sixfold::gateway {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const char* OutcomeName(size_t outcome) {
  constexpr const char* kNames[] = {"stop", "length", "abort", "error"};
  return kNames[outcome];
}

// Collects families, each under both names.
class Page {
 public:
  explicit Page(const std::string& model_name) : model_name_(model_name) {}

  void Counter(const std::string& name, const std::string& help, double value) {
    ClientMetric metric = Labelled("", "");
    metric.counter.value = value;
    AddBoth(name, help, MetricType::Counter, {metric});
  }
  void Gauge(const std::string& name, const std::string& help, double value) {
    ClientMetric metric = Labelled("", "");
    metric.gauge.value = value;
    AddBoth(name, help, MetricType::Gauge, {metric});
  }
  // Ours only: concepts that the other engine has no name for.
  void OwnGauge(const std::string& name, const std::string& help, double value) {
    ClientMetric metric = Labelled("", "");
    metric.gauge.value = value;
    Add("sixfold_" + name, help, MetricType::Gauge, {metric});
  }
  void OwnGauges(const std::string& name, const std::string& help,
                 std::vector<ClientMetric> metrics) {
    if (!metrics.empty()) Add("sixfold_" + name, help, MetricType::Gauge, std::move(metrics));
  }
  void OwnCounters(const std::string& name, const std::string& help,
                   std::vector<ClientMetric> metrics) {
    Add("sixfold_" + name, help, MetricType::Counter, std::move(metrics));
  }
  void Counters(const std::string& name, const std::string& help,
                const std::vector<ClientMetric>& metrics) {
    AddBoth(name, help, MetricType::Counter, metrics);
  }
  void Histogram(const std::string& name, const std::string& help,
                 const gateway::Histogram& histogram) {
    ClientMetric metric = Labelled("", "");
    uint64_t total = 0;
    for (size_t i = 0; i < histogram.counts().size(); ++i) {
      total += histogram.counts()[i];
      const bool last = i == histogram.bounds().size();
      metric.histogram.bucket.push_back(
          {total, last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i]});
    }
    metric.histogram.sample_count = total;
    metric.histogram.sample_sum = histogram.sum();
    AddBoth(name, help, MetricType::Histogram, {metric});
  }
  ClientMetric Labelled(const std::string& label, const std::string& value) const {
    ClientMetric metric;
    metric.label.push_back({"model_name", model_name_});
    if (!label.empty()) metric.label.push_back({label, value});
    return metric;
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  void AddBoth(const std::string& name, const std::string& help, MetricType type,
               const std::vector<ClientMetric>& metrics) {
    Add("sixfold_" + name, help, type, metrics);
    Add("vllm:" + name, help, type, metrics);
  }
  void Add(const std::string& name, const std::string& help, MetricType type,
           std::vector<ClientMetric> metrics) {
    families_.push_back(MetricFamily{name, help, type, std::move(metrics)});
  }

  const std::string model_name_;
  std::vector<MetricFamily> families_;
};

void AddEngine(Page& page, const EngineStats& engine) {
  const auto total = static_cast<double>(std::max<int64_t>(1, engine.blocks_total));
  page.Gauge("num_requests_running", "Choices that the engine computes now", engine.running);
  page.Gauge("num_requests_waiting", "Requests that wait for a place", engine.waiting);
  page.Gauge("kv_cache_usage_perc", "Share of K/V blocks in use, 0 to 1",
             static_cast<double>(engine.blocks_used) / total);
  page.OwnGauge("kv_blocks_used", "K/V blocks in use", static_cast<double>(engine.blocks_used));
  page.OwnGauge("kv_blocks_total", "K/V blocks there are",
                static_cast<double>(engine.blocks_total));
  page.Counter("prompt_tokens_total", "Prompt tokens computed",
               static_cast<double>(engine.prompt_tokens));
  page.Counter("generation_tokens_total", "Tokens sampled",
               static_cast<double>(engine.generated_tokens));
  page.Counter("num_preemptions_total", "Requests that lost their blocks and were computed again",
               static_cast<double>(engine.preemptions));
  ClientMetric steps = page.Labelled("", "");
  steps.counter.value = static_cast<double>(engine.steps);
  page.OwnCounters("engine_steps_total", "Forward passes", {steps});
}

void AddReplicas(Page& page, const EngineStats& engine) {
  std::vector<ClientMetric> running, used;
  for (size_t r = 0; r < engine.replicas.size(); ++r) {
    running.push_back(page.Labelled("replica", std::to_string(r)));
    running.back().gauge.value = engine.replicas[r].running;
    used.push_back(page.Labelled("replica", std::to_string(r)));
    used.back().gauge.value = static_cast<double>(engine.replicas[r].blocks_used);
  }
  page.OwnGauges("replica_requests_running", "Choices that run, by data-parallel replica", running);
  page.OwnGauges("replica_kv_blocks_used", "K/V blocks in use, by data-parallel replica", used);
}

// The load of single experts is in --stats: a label each would be thousands of series.
void AddExperts(Page& page, const ExpertLoad& load) {
  if (load.experts == 0) return;
  const auto count = [&](const std::string& name, const std::string& help, double value) {
    ClientMetric metric = page.Labelled("", "");
    metric.counter.value = value;
    page.OwnCounters(name, help, {metric});
  };
  count("expert_assignments_total", "Tokens times the experts that each went to, over all layers",
        static_cast<double>(load.assignments()));
  count("expert_dispatch_bytes_total", "Bytes of rows sent to experts on other ranks",
        static_cast<double>(load.dispatch_bytes));
  count("expert_combine_bytes_total", "Bytes of expert outputs sent back to other ranks",
        static_cast<double>(load.combine_bytes));
  count("expert_dispatch_seconds_total", "Time in dispatch on the rank that spent most",
        load.dispatch_seconds);
  count("expert_combine_seconds_total", "Time in combine on the rank that spent most",
        load.combine_seconds);
  page.OwnGauge("expert_load_imbalance",
                "Assignments of the busiest expert over the mean, averaged over layers",
                MeanOf(load.imbalance));
  page.OwnGauge("expert_load_imbalance_max", "The same of the layer where it is largest",
                MaxOf(load.imbalance));
  page.OwnGauge("expert_place_imbalance",
                "Assignments of the busiest expert-parallel place over the mean, averaged over layers",
                MeanOf(load.place_imbalance));
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::Observe(double value, uint64_t times) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)] += times;
  sum_ += value * static_cast<double>(times);
}

Metrics::Metrics()
    : time_to_first_token({0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                           1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560}),
      inter_token_latency({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                           0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80}),
      time_per_output_token(inter_token_latency.bounds()),
      e2e_request_latency({0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,
                           20,  30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680}) {}

std::string Metrics::Render(const MetricsReading& now) const {
  Page page(now.model_name);
  page.Histogram("time_to_first_token_seconds", "From the whole request to its first token",
                 time_to_first_token);
  page.Histogram("inter_token_latency_seconds", "Between tokens of a choice", inter_token_latency);
  page.Histogram("request_time_per_output_token_seconds",
                 "Mean time between the tokens of a choice that ended, by choice",
                 time_per_output_token);
  page.Histogram("e2e_request_latency_seconds", "From the whole request to its last token",
                 e2e_request_latency);
  std::vector<ClientMetric> finished, by_status;
  for (size_t i = 0; i < choices_finished.size(); ++i) {
    finished.push_back(page.Labelled("finished_reason", OutcomeName(i)));
    finished.back().counter.value = static_cast<double>(choices_finished[i]);
  }
  page.Counters("request_success_total", "Choices that ended, by reason", finished);
  for (const auto& [status, count] : responses) {
    by_status.push_back(page.Labelled("status", std::to_string(status)));
    by_status.back().counter.value = static_cast<double>(count);
  }
  page.OwnCounters("http_responses_total", "Answers by HTTP status", by_status);
  ClientMetric slow = page.Labelled("", "");
  slow.counter.value = static_cast<double>(slow_clients);
  page.OwnCounters("slow_clients_dropped_total", "Streams ended because their client did not read",
                   {slow});
  page.OwnGauge("http_connections", "Open connections", now.connections);
  page.OwnGauge("engine_up", "1, or 0 when the engine has failed and answers nothing any more",
                now.engine_up ? 1 : 0);
  AddEngine(page, now.engine);
  AddReplicas(page, now.engine);
  AddExperts(page, now.engine.experts);
  return page.Text();
}

}  // namespace sixfold::gateway
