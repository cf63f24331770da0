#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/machine.h"
#include "base/plural.h"
#include "engine/inbox.h"
#include "engine/memory.h"
#include "engine/step.h"
#include "engine/step_model.h"
#include "kernels/numerics.h"
#include "kv/block_pool.h"
#include "sched/plan.h"

namespace sixfold {
namespace {

// How long Drain waits for the step in flight once it has aborted everything.
constexpr std::chrono::seconds kAbortGrace{30};

// Of the warm-up: enough rows for the kernels of prompts, of tokens all over the vocabulary.
constexpr int64_t kWarmUpRows = 64, kWarmUpTokens = 2, kWarmUpStride = 7919;

Result<uint64_t> DrawSeed() {
  try {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  } catch (const std::exception& e) {
    return Internal(fmt::format("no random seed: {}", e.what()));
  }
}

void AddUnique(std::vector<TokenId>& ids, std::span<const TokenId> more) {
  for (const TokenId id : more) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

}  // namespace

struct Engine::Impl {
  Impl(std::unique_ptr<StepModel> step_model, ResolvedOptions resolved);

  // Callers' threads.
  Status CheckPrompt(const Request& request) const;
  Result<std::unique_ptr<ActiveRequest>> Activate(Request request, Sink sink) const;

  // Step thread.
  void Loop();
  Status WarmUp();
  void TakeMail(Inbox::Mail& mail);
  Status Step();
  void Fail(const Status& why);
  GlobalPlan Plan();
  void Deliver(StepResult& result);
  void AbortMatching(RequestId id, int choice);
  void FailAll(const Status& why);
  void Finish(ActiveRequest& active, Sequence& sequence, Delta delta);
  void Emit(ActiveRequest& active, Delta delta);
  void Flush();
  void Publish();

  const std::unique_ptr<StepModel> model;
  const EngineOptions options;
  const SchedLimits limits;
  std::vector<TokenId> eos_ids;
  Inbox inbox;

  // Step thread only.
  std::vector<BlockPool> pools;  // [replicas]
  StepRunner runner;
  std::vector<std::unique_ptr<ActiveRequest>> active;  // in order of arrival
  std::unordered_map<RequestId, ActiveRequest*> by_id;
  std::vector<Sequence*> alive;    // in order of arrival
  std::vector<Sequence*> planned;  // those of the snapshot
  GlobalSnapshot snapshot;
  std::vector<std::pair<ActiveRequest*, Delta>> outgoing;
  EngineStats counters;
  std::promise<Status> warm;

  mutable std::mutex stats_mutex;
  EngineStats published;  // guarded by stats_mutex
  Status failure;         // guarded by stats_mutex

  std::thread thread;  // last, so that all it uses is there
};

Engine::Impl::Impl(std::unique_ptr<StepModel> step_model, ResolvedOptions resolved)
    : model(std::move(step_model)),
      options(std::move(resolved.options)),
      limits{.max_num_batched_tokens = options.max_num_batched_tokens,
             .max_num_seqs = options.max_num_seqs,
             .max_chunk_tokens = options.max_prefill_chunk_tokens,
             .block_tokens = model->kv_placement().unit_tokens()},
      inbox(int64_t{options.max_num_seqs} * model->replicas() + options.max_queued_requests),
      pools(model->replicas(), BlockPool(static_cast<int32_t>(model->kv_placement().UnitsOfPool(resolved.blocks)),
                                         model->kv_placement().pools())),
      runner(*model, pools, resolved.blocks) {
  AddUnique(eos_ids, model->eos_ids());
  AddUnique(eos_ids, options.eos_ids);
  // A damaged config may name ids that the vocabulary lacks; no logit could choose them.
  std::erase_if(eos_ids, [&](TokenId id) { return id < 0 || id >= model->vocab(); });
  Publish();
  thread = std::thread([this] { Loop(); });
}

Status Engine::Impl::CheckPrompt(const Request& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return InvalidArgument("the prompt has no tokens; it must have one or more");
  if (prompt >= options.max_model_len) {
    return Status(StatusCode::kContextLength,
                  fmt::format("the prompt has {}; with at least one of an answer that is more than the context "
                              "of {} tokens",
                              Plural(static_cast<int64_t>(prompt), "token"), options.max_model_len));
  }
  for (const TokenId token : request.prompt) {
    if (token < 0 || token >= model->vocab()) {
      return InvalidArgument(
          fmt::format("the prompt holds token id {}; the vocabulary's are 0 to {}", token, model->vocab() - 1));
    }
  }
  return ValidateSampling(request.sampling, model->vocab());
}

Result<std::unique_ptr<ActiveRequest>> Engine::Impl::Activate(Request request, Sink sink) const {
  SF_RETURN_IF_ERROR(CheckPrompt(request));
  auto active = std::make_unique<ActiveRequest>();
  SamplingParams& sampling = request.sampling;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  sampling.max_tokens = std::min(sampling.max_tokens, options.max_model_len - prompt);
  if (!sampling.seed) {
    SF_ASSIGN_OR_RETURN(sampling.seed, DrawSeed());
  }
  active->request = std::move(request);
  active->sink = std::move(sink);
  const SamplingParams& kept = active->request.sampling;
  AddUnique(active->stop_ids, kept.stop_token_ids);
  active->end_ids = active->stop_ids;
  AddUnique(active->end_ids, eos_ids);
  if (!kept.ignore_eos) active->stop_ids = active->end_ids;
  active->unfinished = kept.n;
  active->choices.resize(kept.n);
  for (int c = 0; c < kept.n; ++c) {
    Sequence& s = active->choices[c];
    s.choice = c;
    s.seed = *kept.seed;
    s.sampling = &kept;
    s.end_ids = active->end_ids;
    s.tokens.reserve(prompt + std::min<int64_t>(kept.max_tokens, 1024));
    s.tokens = active->request.prompt;
    s.prompt_tokens = prompt;
    s.progress.known = prompt;
  }
  active->request.prompt = {};  // each choice has its own
  return active;
}

void Engine::Impl::Loop() {
  SetFloatMode();
  Inbox::Mail mail;
  Status status = options.warm_up == EngineOptions::WarmUp::kYes ? WarmUp() : OkStatus();
  warm.set_value(status);
  while (status.ok()) {
    inbox.Take(alive.empty() ? Inbox::WhenEmpty::kSleep : Inbox::WhenEmpty::kReturn, mail);
    TakeMail(mail);
    if (mail.stop) break;
    if (!alive.empty()) status = Step();
  }
  if (status.ok()) {
    for (const auto& request : active) AbortMatching(request->request.id, Inbox::kAllChoices);
    Flush();
  } else {
    Fail(status);
  }
  inbox.End();
}

// A prompt for each replica and its first tokens, as the first requests would bring them.
Status Engine::Impl::WarmUp() {
  const int64_t rows = std::clamp<int64_t>(options.max_model_len - kWarmUpTokens, 1, kWarmUpRows);
  const SamplingParams greedy{.temperature = 0, .ignore_eos = true};
  std::vector<Sequence> sequences(pools.size());
  for (Sequence& s : sequences) {
    s.sampling = &greedy;
    for (int64_t i = 0; i < rows; ++i) s.tokens.push_back(static_cast<TokenId>(i * kWarmUpStride % model->vocab()));
    s.prompt_tokens = s.progress.known = rows;
    alive.push_back(&s);
  }
  const auto wanted = std::min<int64_t>(kWarmUpTokens, options.max_model_len - rows);
  Status status;
  bool sampled = true;  // a model whose logits are no numbers is warm by its first pass
  while (status.ok() && sampled && std::ssize(sequences.front().answer()) < wanted) {
    const GlobalPlan plan = Plan();
    SF_CHECK(!plan.empty());
    status = runner.Run(plan, planned);
    if (!status.ok()) break;
    for (const StepResult::Sampled& of_one : runner.result().sampled) sampled = sampled && of_one.token.ok();
  }
  for (Sequence& s : sequences) runner.ReleaseBlocks(s);
  alive.clear();
  planned.clear();
  SF_RETURN_IF_ERROR(status);
  return model->ResetCounters();
}

// Whoever hears of the failure finds it in health() already, and whoever came in before the inbox closed hears of it.
void Engine::Impl::Fail(const Status& why) {
  const Status unavailable(StatusCode::kUnavailable, why.message());
  {
    const std::lock_guard lock(stats_mutex);
    failure = unavailable;
  }
  inbox.Fail(unavailable);
  Inbox::Mail late;
  inbox.Take(Inbox::WhenEmpty::kReturn, late);
  TakeMail(late);
  FailAll(unavailable);
  Flush();
}

void Engine::Impl::TakeMail(Inbox::Mail& mail) {
  for (std::unique_ptr<ActiveRequest>& arrival : mail.arrivals) {
    for (Sequence& s : arrival->choices) alive.push_back(&s);
    by_id.emplace(arrival->request.id, arrival.get());
    active.push_back(std::move(arrival));
  }
  for (const auto& [id, choice] : mail.aborts) AbortMatching(id, choice);
  Flush();
}

// One turn of the loop: what the policy says, carried out, and its news sent.
Status Engine::Impl::Step() {
  const GlobalPlan plan = Plan();
  SF_CHECK(!plan.empty());  // each sequence alone fits into all blocks of a replica, so some row can be computed
  const auto now = std::chrono::steady_clock::now();
  for (const StepPlan& replica : plan.replicas) {
    for (const int32_t i : replica.admit) planned[i]->started = planned[i]->started.value_or(now);
  }
  SF_RETURN_IF_ERROR(runner.Run(plan, planned));
  ++counters.steps;
  for (const StepPlan& replica : plan.replicas) counters.preemptions += replica.preempt.size();
  Deliver(runner.result());
  Flush();
  return OkStatus();
}

GlobalPlan Engine::Impl::Plan() {
  planned.clear();
  snapshot.sequences.clear();
  snapshot.blocks_free.clear();
  for (const BlockPool& pool : pools) snapshot.blocks_free.push_back(pool.free());
  const int64_t waiting_max = limits.max_num_seqs * static_cast<int64_t>(pools.size());
  int64_t waiting = 0;
  for (Sequence* s : alive) {
    if (s->progress.state == SequenceState::kWaiting && ++waiting > waiting_max) continue;
    planned.push_back(s);
    snapshot.sequences.push_back(s->progress);
  }
  return PlanStep(snapshot, limits);
}

void Engine::Impl::Deliver(StepResult& result) {
  for (StepResult::Sampled& sampled : result.sampled) {
    Sequence& s = *sampled.sequence;
    ActiveRequest& request = *by_id.at(s.request);
    Delta delta{.request = s.request, .choice = s.choice, .seed = s.seed, .started = s.started};
    if (!sampled.token.ok()) {
      delta.finish = FinishReason::kError;
      delta.error = sampled.token.status();
      ++counters.failed;
      Finish(request, s, std::move(delta));
      continue;
    }
    const TokenId token = sampled.token->token;
    const auto length = static_cast<int64_t>(s.answer().size());
    ++counters.generated_tokens;
    if (length == 1 && s.choice == 0) counters.prompt_tokens += s.prompt_tokens;
    delta.tokens.push_back(std::move(*sampled.token));
    const std::vector<TokenId>& stops = request.stop_ids;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      delta.finish = FinishReason::kStop;
      delta.stop_token = token;
      ++counters.finished_stop;
      Finish(request, s, std::move(delta));
    } else if (length == s.sampling->max_tokens) {
      delta.finish = FinishReason::kLength;
      ++counters.finished_length;
      Finish(request, s, std::move(delta));
    } else {
      Emit(request, std::move(delta));
    }
  }
}

void Engine::Impl::AbortMatching(RequestId id, int choice) {
  const auto found = by_id.find(id);
  if (found == by_id.end()) return;
  for (Sequence& s : found->second->choices) {
    if (s.progress.state == SequenceState::kFinished) continue;
    if (choice != Inbox::kAllChoices && choice != s.choice) continue;
    ++counters.aborted;
    Finish(*found->second, s, {.request = id, .choice = s.choice, .finish = FinishReason::kAborted, .seed = s.seed});
  }
}

void Engine::Impl::FailAll(const Status& why) {
  for (const auto& request : active) {
    for (Sequence& s : request->choices) {
      if (s.progress.state == SequenceState::kFinished) continue;
      ++counters.failed;
      Finish(*request, s,
             {.request = s.request, .choice = s.choice, .finish = FinishReason::kError, .error = why, .seed = s.seed});
    }
  }
}

void Engine::Impl::Finish(ActiveRequest& request, Sequence& sequence, Delta delta) {
  runner.ReleaseBlocks(sequence);
  sequence.progress.Finish();
  --request.unfinished;
  Emit(request, std::move(delta));
}

void Engine::Impl::Emit(ActiveRequest& request, Delta delta) { outgoing.emplace_back(&request, std::move(delta)); }

// Sends the news. Blocks, places and counters are given back first, so that a client that hears of its end sees them
// so.
void Engine::Impl::Flush() {
  std::erase_if(alive, [](const Sequence* s) { return s->progress.state == SequenceState::kFinished; });
  for (const auto& [request, delta] : outgoing) {
    if (delta.finish) inbox.FinishChoice(delta.request);
  }
  Publish();
  for (auto& [request, delta] : outgoing) request->sink(std::move(delta));
  outgoing.clear();
  std::erase_if(active, [&](const std::unique_ptr<ActiveRequest>& request) {
    if (request->unfinished > 0) return false;
    by_id.erase(request->request.id);
    return true;
  });
}

void Engine::Impl::Publish() {
  counters.blocks_total = counters.blocks_used = 0;
  counters.running = 0;
  counters.replicas.resize(pools.size());
  for (size_t r = 0; r < pools.size(); ++r) {
    counters.replicas[r] = {.blocks_total = pools[r].total(), .blocks_used = pools[r].used()};
    counters.blocks_total += pools[r].total();
    counters.blocks_used += pools[r].used();
  }
  for (const Sequence* s : alive) {
    if (s->progress.state != SequenceState::kRunning) continue;
    ++counters.replicas[s->progress.replica].running;
    ++counters.running;
  }
  const std::lock_guard lock(stats_mutex);
  published = counters;
}

Engine::Engine() = default;

Engine::~Engine() {
  impl_->inbox.Stop();
  impl_->thread.join();
}

Result<std::unique_ptr<Engine>> Engine::StartWith(std::unique_ptr<StepModel> model, const EngineOptions& options) {
  SF_ASSIGN_OR_RETURN(ResolvedOptions resolved,
                      ResolveOptions(options, {.geometry = model->kv_geometry(),
                                               .model_max_positions = model->max_positions(),
                                               .available_bytes = AvailableMemoryBytes(),
                                               .ranks_here = model->ranks_here(),
                                               .placement = model->kv_placement()}));
  SF_RETURN_IF_ERROR(model->AllocateKv(resolved.blocks));
  std::unique_ptr<Engine> engine(new Engine());
  engine->impl_ = std::make_unique<Impl>(std::move(model), std::move(resolved));
  SF_RETURN_IF_ERROR(engine->impl_->warm.get_future().get());
  return engine;
}

const Model& Engine::model() const {
  SF_CHECK(model_ != nullptr);
  return *model_;
}

const EngineOptions& Engine::options() const { return impl_->options; }

int64_t Engine::vocab() const { return impl_->model->vocab(); }

Result<RequestId> Engine::Submit(Request request, Sink sink) {
  SF_RETURN_IF_ERROR(health());
  SF_ASSIGN_OR_RETURN(std::unique_ptr<ActiveRequest> active, impl_->Activate(std::move(request), std::move(sink)));
  return impl_->inbox.Submit(std::move(active));
}

void Engine::Abort(RequestId id) { impl_->inbox.Abort(id, Inbox::kAllChoices); }

void Engine::AbortChoice(RequestId id, int choice) { impl_->inbox.Abort(id, choice); }

EngineStats Engine::stats() const {
  const int64_t alive = impl_->inbox.choices_alive();
  ExpertLoad experts = impl_->model->expert_load();
  const std::lock_guard lock(impl_->stats_mutex);
  EngineStats stats = impl_->published;
  stats.experts = std::move(experts);
  stats.waiting = static_cast<int>(std::max<int64_t>(0, alive - stats.running));
  return stats;
}

Status Engine::health() const {
  {
    const std::lock_guard lock(impl_->stats_mutex);
    if (!impl_->failure.ok()) return impl_->failure;
  }
  const Status model = impl_->model->health();
  return model.ok() ? model : Status(StatusCode::kUnavailable, model.message());
}

Status Engine::Drain(std::chrono::milliseconds deadline) {
  impl_->inbox.Close();
  if (impl_->inbox.WaitIdle(std::chrono::steady_clock::now() + deadline)) return health();
  const int64_t left = impl_->inbox.choices_alive();
  impl_->inbox.AbortAll();
  const bool ended = impl_->inbox.WaitIdle(std::chrono::steady_clock::now() + kAbortGrace);
  return Status(StatusCode::kDeadline,
                fmt::format("{} answers were still running after {} ms and were aborted{}", left, deadline.count(),
                            ended ? "" : "; the step in flight has not ended"));
}

}  // namespace sixfold
