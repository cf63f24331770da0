#include "engine/generate.h"

#include <fmt/format.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace sixfold {
namespace {

// Deltas on their way from the step thread. Bounded by the answer's length. Shared: when the deadline passes, the
// caller leaves while the engine still holds the sink.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<Delta> deltas;
};

constexpr std::chrono::milliseconds kAskInterval{50};

// Empty when nothing came in time, or when `stop` says so, which is then true in *stopped.
std::vector<Delta> TakeDeltas(Mailbox& mailbox, const GenerateOptions& options, bool* stopped) {
  const auto end = std::chrono::steady_clock::now() + options.deadline;
  const auto came = [&] { return !mailbox.deltas.empty(); };
  std::unique_lock lock(mailbox.mutex);
  if (options.stop == nullptr || *stopped) {
    mailbox.came.wait_until(lock, end, came);
    return std::exchange(mailbox.deltas, {});
  }
  while (!mailbox.came.wait_for(lock, kAskInterval, came) && std::chrono::steady_clock::now() < end) {
    lock.unlock();
    *stopped = options.stop();
    lock.lock();
    if (*stopped) break;
  }
  return std::exchange(mailbox.deltas, {});
}

// What is collected of one choice, and whether the caller has ended it.
struct Collector {
  GeneratedChoice choice;
  Status error;
  bool ended = false;
};

void Collect(Collector& c, Delta& delta) {
  if (!c.ended) {
    for (SampledToken& token : delta.tokens) c.choice.tokens.push_back(std::move(token));
  }
  if (!delta.finish) return;
  if (!c.ended) c.choice.finish = *delta.finish;
  c.choice.stop_token = delta.stop_token;
  c.error = delta.error;
}

}  // namespace

Result<GenerateOutput> Generate(Engine& engine, Request request, const OnDelta& on_delta,
                                const GenerateOptions& options) {
  const auto mailbox = std::make_shared<Mailbox>();
  std::vector<Collector> collectors(std::max(request.sampling.n, 0));
  SF_ASSIGN_OR_RETURN(const RequestId id, engine.Submit(std::move(request), [mailbox](Delta delta) {
    const std::lock_guard lock(mailbox->mutex);
    mailbox->deltas.push_back(std::move(delta));
    mailbox->came.notify_one();
  }));
  GenerateOutput output;
  bool stopped = false;
  for (size_t unfinished = collectors.size(); unfinished > 0;) {
    const bool ran = !stopped;
    std::vector<Delta> deltas = TakeDeltas(*mailbox, options, &stopped);
    if (stopped && ran) {
      for (size_t choice = 0; choice < collectors.size(); ++choice) {
        if (!std::exchange(collectors[choice].ended, true)) engine.AbortChoice(id, static_cast<int>(choice));
      }
    } else if (deltas.empty()) {
      engine.Abort(id);
      return Status(StatusCode::kDeadline, fmt::format("no token came within {} ms", options.deadline.count()));
    }
    for (Delta& delta : deltas) {
      Collector& c = collectors[delta.choice];
      output.seed = delta.seed;
      const bool final = delta.finish.has_value();
      if (!c.ended && on_delta && on_delta(delta) == AfterDelta::kEndChoice && !final) {
        engine.AbortChoice(id, delta.choice);
        Collect(c, delta);
        c.ended = true;
        continue;
      }
      Collect(c, delta);
      if (final) --unfinished;
    }
  }
  for (Collector& c : collectors) {
    if (!c.error.ok()) return c.error;
    output.choices.push_back(std::move(c.choice));
  }
  return output;
}

}  // namespace sixfold
