#include "engine/rank_group.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/local/local_world.h"
#include "engine/expert_load.h"
#include "mesh/collectives.h"
#include "model/stage.h"

namespace sixfold {

namespace {

constexpr std::chrono::milliseconds kLook{50};        // how often a caller looks whether the ranks have failed
constexpr std::chrono::milliseconds kStuckGrace{500};  // then waits that long for rank 0 to say so itself
constexpr std::chrono::seconds kJoinGrace{5};
constexpr std::chrono::milliseconds kLoadAge{500};  // of expert_load, while there are steps

// Of counts and times; the maxima of memory stay.
void Subtract(RankReport* report, const RankReport& before) {
  for (const auto& [key, entry] : before.ledger) {
    LedgerEntry& left = report->ledger[key];
    left.count -= entry.count;
    left.bytes -= entry.bytes;
    if (left == LedgerEntry{}) report->ledger.erase(key);
  }
  report->control.messages -= before.control.messages;
  report->control.bytes -= before.control.bytes;
  report->comm_ns -= before.comm_ns;
  report->idle_ns -= before.idle_ns;
  report->step_ns -= before.step_ns;
  report->dispatch_ns -= before.dispatch_ns;
  report->combine_ns -= before.combine_ns;
  for (size_t i = 0; i < before.expert_tokens.size(); ++i) report->expert_tokens[i] -= before.expert_tokens[i];
}

}  // namespace

// A call from the engine's thread, carried out by rank 0's.
struct RankGroup::Impl {
  explicit Impl(InstanceSpec s) : spec(std::move(s)), load(EmptyLoad(spec.layout)) {}

  InstanceSpec spec;
  RankGroupOptions options;
  std::unique_ptr<LocalWorld> local;  // threads
  Transport* transport = nullptr;     // rank 0's
  int ranks_here = 1;
  Ledger predicted;
  std::vector<RankReport> uncounted;  // before ResetCounters; rank 0's thread
  int64_t uncounted_steps = 0;
  bool record = false;
  StepRoutes routes, forced;
  KvGeometry geometry;

  std::mutex mutex;
  std::condition_variable changed;
  std::function<Status(RankRunner&)> job;  // guarded by mutex, as are the next four
  std::optional<Status> answer;
  Status loaded;
  bool ready = false;
  bool ending = false;
  ExpertLoad load;
  bool stale = false;  // a step came after `load`
  std::chrono::steady_clock::time_point measured;
  int running = 0;  // threads that have not ended
  std::span<const float> logits;

  std::vector<std::thread> threads;

  // Rank 0's thread: load, then jobs; alive in the eyes of the others while there are none.
  void Lead() {
    RankRunner runner(spec, 0, *transport);
    Status status = runner.Load();
    std::unique_lock lock(mutex);
    const bool failed = !status.ok();
    loaded = std::move(status);
    ready = true;
    changed.notify_all();
    while (!failed) {
      while (!job && !ending) {
        changed.wait_for(lock, stale ? std::min(kLoadAge, options.timeout / 8) : options.timeout / 8);
        transport->Progress({.step = runner.steps()});
        if (!stale || job || ending) continue;
        lock.unlock();
        // Nobody waits for this one: whoever calls next finds the transport's failure.
        static_cast<void>(MeasureLoad(runner).ok());
        lock.lock();
      }
      if (!job) break;
      const auto work = std::exchange(job, nullptr);
      lock.unlock();
      Status done = work(runner);
      lock.lock();
      // After a failure, too, `runner` stays until the group ends: the caller may still read the logits of its last step.
      answer = std::move(done);
      changed.notify_all();
    }
  }

  // What the ranks did since ResetCounters, on rank 0's thread.
  Result<std::vector<RankReport>> Reports(RankRunner& runner) const {
    SF_ASSIGN_OR_RETURN(std::vector<RankReport> reports, runner.Report());
    for (size_t r = 0; r < uncounted.size(); ++r) Subtract(&reports[r], uncounted[r]);
    return reports;
  }

  // Asks all ranks what their experts did. A failure is the instance's, as in a step.
  Status MeasureLoad(RankRunner& runner) {
    const Result<std::vector<RankReport>> reports = Reports(runner);
    const std::lock_guard lock(mutex);
    stale = false;
    measured = std::chrono::steady_clock::now();
    SF_RETURN_IF_ERROR(reports.status());
    load = LoadOf(spec.layout, *reports);
    return OkStatus();
  }

  // After a step, on rank 0's thread.
  Status NoteStep(RankRunner& runner) {
    if (spec.config.moe.experts == 0) return OkStatus();
    {
      const std::lock_guard lock(mutex);
      stale = true;
      if (std::chrono::steady_clock::now() - measured < kLoadAge) return OkStatus();
    }
    return MeasureLoad(runner);
  }

  void Follow(int rank) {
    RankRunner runner(spec, rank, local->transport(rank));
    if (!runner.Load().ok()) return;  // all ranks have heard of it, rank 0 reports it
    const Status status = runner.Serve();
    if (!status.ok() && local->transport(rank).Failed().ok()) local->transport(rank).Abort(status);
  }

  // Runs work on rank 0's thread and waits. Rank 0 itself may be stuck: then the failure that another rank has found is the
  // answer.
  Status Call(std::function<Status(RankRunner&)> work) {
    std::unique_lock lock(mutex);
    if (const Status failed = transport->Failed(); !failed.ok()) return failed;
    job = std::move(work);
    answer.reset();
    changed.notify_all();
    std::optional<std::chrono::steady_clock::time_point> give_up;
    while (!answer) {
      changed.wait_for(lock, kLook);
      const Status failed = transport->Failed();
      if (failed.ok() || answer) continue;
      const auto now = std::chrono::steady_clock::now();
      if (!give_up) give_up = now + kStuckGrace;
      if (now >= *give_up) return failed;
    }
    return *answer;
  }
};

RankGroup::RankGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

namespace {

// A thread that tells when it ends, so that it can be waited for with a deadline.
template <typename Impl, typename Body>
void Launch(const std::shared_ptr<Impl>& impl, Body body) {
  {
    const std::lock_guard lock(impl->mutex);
    ++impl->running;
  }
  impl->threads.emplace_back([impl, body = std::move(body)] {
    body(*impl);
    const std::lock_guard lock(impl->mutex);
    --impl->running;
    impl->changed.notify_all();
  });
}

template <typename Impl>
Status WaitLoaded(Impl& impl) {
  std::unique_lock lock(impl.mutex);
  impl.changed.wait(lock, [&] { return impl.ready; });  // each rank's own waits have deadlines
  return impl.loaded;
}

}  // namespace

Result<std::unique_ptr<RankGroup>> RankGroup::StartThreads(InstanceSpec spec, const RankGroupOptions& options) {
  auto impl = std::make_shared<Impl>(std::move(spec));
  impl->options = options;
  const int world = impl->spec.layout.world();
  LocalWorldOptions local{.timeout = options.timeout, .threads_per_rank = impl->spec.options.threads};
  if (options.links == RankGroupOptions::Links::kEmulated) local.emulated_links = impl->spec.layout.cluster();
  impl->local = std::make_unique<LocalWorld>(world, local);
  impl->transport = &impl->local->transport(0);
  impl->ranks_here = world;
  impl->geometry = LargestKvGeometry(impl->spec.layout);
  std::unique_ptr<RankGroup> group(new RankGroup(impl));
  Launch(impl, [](Impl& i) { i.Lead(); });
  for (int rank = 1; rank < world; ++rank) Launch(impl, [rank](Impl& i) { i.Follow(rank); });
  SF_RETURN_IF_ERROR(WaitLoaded(*impl));
  return group;
}

Result<std::unique_ptr<RankGroup>> RankGroup::StartLeader(InstanceSpec spec, MpiWorld& world,
                                                          const RankGroupOptions& options) {
  if (options.links == RankGroupOptions::Links::kEmulated)
    return InvalidArgument("links are emulated between threads of one process only");
  auto impl = std::make_shared<Impl>(std::move(spec));
  impl->options = options;
  impl->transport = &world.transport();
  impl->ranks_here = world.ranks_on_host();
  impl->geometry = LargestKvGeometry(impl->spec.layout);
  std::unique_ptr<RankGroup> group(new RankGroup(impl));
  Launch(impl, [](Impl& i) { i.Lead(); });
  SF_RETURN_IF_ERROR(WaitLoaded(*impl));
  return group;
}

Status RunRank(InstanceSpec spec, MpiWorld& world) {
  RankRunner runner(spec, world.rank(), world.transport());
  SF_RETURN_IF_ERROR(runner.Load());
  return runner.Serve();
}

RankGroup::~RankGroup() {
  const Status stopped = Stop();
  std::unique_lock lock(impl_->mutex);
  impl_->ending = true;
  impl_->changed.notify_all();
  // A rank that failed while others wait has ended the instance; one that is stuck cannot be joined.
  const bool ended = impl_->changed.wait_for(lock, kJoinGrace, [&] { return impl_->running == 0; });
  lock.unlock();
  for (std::thread& thread : impl_->threads) {
    if (ended) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  impl_->threads.clear();
}

int RankGroup::replicas() const { return impl_->spec.layout.dp(); }
KvGeometry RankGroup::kv_geometry() const { return impl_->geometry; }
KvPlacement RankGroup::kv_placement() const { return PlacementOf(impl_->spec.layout); }
int RankGroup::ranks_here() const { return impl_->ranks_here; }
int64_t RankGroup::vocab() const { return impl_->spec.config.vocab; }
int64_t RankGroup::max_positions() const { return impl_->spec.config.max_positions; }
std::span<const TokenId> RankGroup::eos_ids() const { return impl_->spec.config.eos_ids; }
Status RankGroup::health() const { return impl_->transport->Failed(); }

Status RankGroup::AllocateKv(int32_t blocks) {
  return impl_->Call([blocks](RankRunner& runner) { return runner.AllocateKv(blocks); });
}

Result<std::span<const float>> RankGroup::Forward(std::span<const StepBatch> batches) {
  Impl& m = *impl_;
  std::vector<StepBatch> copy(batches.begin(), batches.end());
  SF_RETURN_IF_ERROR(m.Call([&m, copy = std::move(copy)](RankRunner& runner) mutable -> Status {
    const bool predict = m.options.prediction == RankGroupOptions::Prediction::kOn;
    const bool record = m.record || (predict && m.spec.layout.dispatches());
    SF_ASSIGN_OR_RETURN(m.logits, runner.Step(std::move(copy), {.record_routes = record, .forced = std::move(m.forced)}));
    m.forced = {};
    if (record) m.routes = runner.last_routes();
    if (predict) AddTo(&m.predicted, PlanCollectives(m.spec.layout, runner.last_shape(), &m.routes));
    return m.NoteStep(runner);
  }));
  return m.logits;
}

void RankGroup::RecordRoutes(bool record) { impl_->record = record; }
const StepRoutes& RankGroup::last_routes() const { return impl_->routes; }
void RankGroup::ForceRoutes(StepRoutes routes) { impl_->forced = std::move(routes); }

ExpertLoad RankGroup::expert_load() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->load;
}

Status RankGroup::ResetCounters() {
  Impl& m = *impl_;
  return m.Call([&m](RankRunner& runner) -> Status {
    SF_ASSIGN_OR_RETURN(m.uncounted, runner.Report());
    m.uncounted_steps = runner.steps();
    m.predicted = {};
    const std::lock_guard lock(m.mutex);
    m.load = EmptyLoad(m.spec.layout);
    m.stale = false;
    return OkStatus();
  });
}

Result<GroupStats> RankGroup::Stats() {
  Impl& m = *impl_;
  // Shared: a rank 0 that is stuck may come to it when this call has long given up.
  const auto reported = std::make_shared<GroupStats>();
  SF_RETURN_IF_ERROR(m.Call([&m, reported](RankRunner& runner) -> Status {
    SF_ASSIGN_OR_RETURN(reported->ranks, m.Reports(runner));
    reported->steps = runner.steps() - m.uncounted_steps;
    return OkStatus();
  }));
  GroupStats stats = *reported;
  stats.world = m.spec.layout.world();
  stats.predicted = m.predicted;
  for (const RankReport& rank : stats.ranks) AddTo(&stats.counted, rank.ledger);
  if (m.spec.config.moe.experts > 0) stats.experts = LoadOf(m.spec.layout, stats.ranks);
  return stats;
}

Result<std::vector<trace::RankTrace>> RankGroup::TakeTrace() {
  const auto taken = std::make_shared<std::vector<trace::RankTrace>>();  // shared: as in Stats
  SF_RETURN_IF_ERROR(impl_->Call([taken](RankRunner& runner) -> Status {
    SF_ASSIGN_OR_RETURN(*taken, runner.TakeTrace());
    return OkStatus();
  }));
  return std::move(*taken);
}

Status RankGroup::Stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->ending || !impl_->ready || !impl_->loaded.ok()) return OkStatus();
  }
  Status status = impl_->Call([impl = impl_.get()](RankRunner& runner) {
    {
      const std::lock_guard lock(impl->mutex);
      impl->stale = false;  // nobody to ask from here on
    }
    return runner.Stop();
  });
  const std::lock_guard lock(impl_->mutex);
  impl_->ending = true;
  impl_->changed.notify_all();
  return status;
}

}  // namespace sixfold
