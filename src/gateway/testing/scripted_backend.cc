#include "gateway/testing/scripted_backend.h"

#include <algorithm>

namespace sixfold::gateway {
namespace {

constexpr int64_t kBlockTokens = 16;

SampledToken Sample(const Request& request, TokenId token, int64_t vocab) {
  SampledToken sampled{.token = token};
  if (request.sampling.logprobs < 0) return sampled;
  TokenLogprobs logprobs{.logprob = -0.25f};
  for (int i = 0; i < request.sampling.logprobs; ++i) {
    logprobs.top.emplace_back(static_cast<TokenId>((token + i) % vocab),
                              -0.25f - static_cast<float>(i));
  }
  sampled.logprobs = std::move(logprobs);
  return sampled;
}

}  // namespace

ScriptedBackend::ScriptedBackend(ScriptOptions options) : options_(std::move(options)) {
  stats_.blocks_total = 1 << 16;
  thread_ = std::thread([this] { Loop(); });
}

ScriptedBackend::~ScriptedBackend() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (auto& [_, active] : active_) {
      for (auto& [index, choice] : active.choices) choice.abort = true;
    }
  }
  changed_.notify_all();
  thread_.join();
}

Result<RequestId> ScriptedBackend::Submit(Request request, Sink sink) {
  const std::lock_guard lock(mutex_);
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (stop_) return Status(StatusCode::kUnavailable, "stopped");
  if (prompt >= options_.max_model_len)
    return Status(StatusCode::kContextLength, "the prompt fills the context");
  const auto waiting = std::count_if(active_.begin(), active_.end(), [](const auto& entry) {
    return std::none_of(entry.second.choices.begin(), entry.second.choices.end(),
                        [](const auto& c) { return c.second.running; });
  });
  if (waiting >= options_.max_queued) return Status(StatusCode::kOverloaded, "the queue is full");
  request.sampling.max_tokens =
      std::min(request.sampling.max_tokens, options_.max_model_len - prompt);
  request.id = RequestId(next_id_++);
  last_sampling_ = request.sampling;
  last_prompt_ = request.prompt;
  Active active{.request = std::move(request), .sink = std::move(sink)};
  active.seed = active.request.sampling.seed.value_or(next_id_ * 7919);
  for (int i = 0; i < active.request.sampling.n; ++i) {
    active.choices[i].script = options_.script(active.request, i, active.seed);
  }
  const RequestId id = active.request.id;
  stats_.prompt_tokens += static_cast<uint64_t>(prompt);
  active_.emplace(id.value(), std::move(active));
  changed_.notify_all();
  return id;
}

void ScriptedBackend::Abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto it = active_.find(id.value());
  if (it == active_.end()) return;
  for (auto& [_, choice] : it->second.choices) choice.abort = true;
  changed_.notify_all();
}

void ScriptedBackend::AbortChoice(RequestId id, int choice) {
  const std::lock_guard lock(mutex_);
  const auto it = active_.find(id.value());
  if (it == active_.end()) return;
  const auto found = it->second.choices.find(choice);
  if (found != it->second.choices.end()) found->second.abort = true;
  changed_.notify_all();
}

EngineStats ScriptedBackend::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  for (const auto& [_, active] : active_) {
    int running = 0;
    for (const auto& [index, choice] : active.choices) {
      if (!choice.running) continue;
      ++running;
      const int64_t tokens = static_cast<int64_t>(active.request.prompt.size()) + choice.position;
      stats.blocks_used += (tokens + kBlockTokens - 1) / kBlockTokens;
    }
    stats.running += running;
    stats.waiting += running == 0;
  }
  return stats;
}

uint64_t ScriptedBackend::submitted() const {
  const std::lock_guard lock(mutex_);
  return next_id_ - 1;
}

SamplingParams ScriptedBackend::last_sampling() const {
  const std::lock_guard lock(mutex_);
  return last_sampling_;
}

std::vector<TokenId> ScriptedBackend::last_prompt() const {
  const std::lock_guard lock(mutex_);
  return last_prompt_;
}

bool ScriptedBackend::WaitSubmitted(uint64_t count, std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this, count] { return next_id_ > count; });
}

bool ScriptedBackend::WaitIdle(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return active_.empty() && !calling_sinks_; });
}

void ScriptedBackend::Loop() {
  std::unique_lock lock(mutex_);
  std::vector<News> news;
  while (!stop_ || !active_.empty()) {
    changed_.wait(lock, [this] { return stop_ || !active_.empty(); });
    Step(news);
    calling_sinks_ = true;
    const bool stopping = stop_;
    lock.unlock();
    for (News& item : news) item.sink(std::move(item.delta));
    news.clear();
    if (!stopping) std::this_thread::sleep_for(options_.step_time);
    lock.lock();
    calling_sinks_ = false;
    if (active_.empty()) changed_.notify_all();
  }
}

void ScriptedBackend::Step(std::vector<News>& news) {
  ++stats_.steps;
  int running = 0;
  for (auto it = active_.begin(); it != active_.end();) {
    Active& active = it->second;
    for (auto choice = active.choices.begin(); choice != active.choices.end();) {
      auto& [index, state] = *choice;
      if (!state.abort && !state.running && running >= options_.max_running) {
        ++choice;
        continue;
      }
      state.running = !state.abort;
      running += state.running;
      Delta delta = NextDelta(active, index, state);
      const bool finished = delta.finish.has_value();
      if (finished) Count(*delta.finish);
      news.push_back({active.sink, std::move(delta)});
      choice = finished ? active.choices.erase(choice) : std::next(choice);
    }
    it = active.choices.empty() ? active_.erase(it) : std::next(it);
  }
}

Delta ScriptedBackend::NextDelta(Active& active, int index, Choice& choice) {
  const SamplingParams& sampling = active.request.sampling;
  Delta delta{.request = active.request.id, .choice = index, .seed = active.seed};
  if (choice.abort) {
    delta.finish = FinishReason::kAborted;
    return delta;
  }
  if (options_.fault) {
    if (Status status = options_.fault(active.request, index, choice.position); !status.ok()) {
      delta.finish = FinishReason::kError;
      delta.error = std::move(status);
      return delta;
    }
  }
  const auto length = static_cast<int64_t>(choice.script.size());
  const bool at_end =
      choice.position >= length && !sampling.ignore_eos && choice.position >= sampling.min_tokens;
  const TokenId token = at_end || length == 0
                            ? options_.eos
                            : choice.script[static_cast<size_t>(choice.position % length)];
  delta.tokens.push_back(Sample(active.request, token, options_.vocab));
  delta.tokens.back().sampled_at = options_.sampled_at
                                       ? options_.sampled_at(index, choice.position)
                                       : std::chrono::steady_clock::now();
  ++choice.position;
  ++stats_.generated_tokens;
  const auto& stops = sampling.stop_token_ids;
  const bool stopped = at_end || (choice.position > sampling.min_tokens &&
                                  std::find(stops.begin(), stops.end(), token) != stops.end());
  if (stopped) {
    delta.finish = FinishReason::kStop;
    delta.stop_token = token;
  } else if (choice.position >= sampling.max_tokens) {
    delta.finish = FinishReason::kLength;
  }
  return delta;
}

void ScriptedBackend::Count(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: ++stats_.finished_stop; break;
    case FinishReason::kLength: ++stats_.finished_length; break;
    case FinishReason::kAborted: ++stats_.aborted; break;
    case FinishReason::kError: ++stats_.failed; break;
  }
}

}  // namespace sixfold::gateway
