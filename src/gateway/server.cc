#include "gateway/server.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <optional>
#include <random>
#include <unordered_map>
#include <utility>
#include <variant>

#include "gateway/content_coding.h"
#include "gateway/delta_inbox.h"
#include "gateway/generation.h"
#include "gateway/json_writer.h"
#include "gateway/metrics.h"
#include "gateway/openai_format.h"
#include "gateway/prepare_queue.h"
#include "gateway/request_log.h"

namespace sixfold::gateway {
namespace {

using Clock = std::chrono::steady_clock;

enum class Route : uint8_t {
  kChat,
  kCompletions,
  kModels,
  kModel,
  kHealth,
  kMetrics,
  kVersion,
  kUnknown
};

// How often the backend's health and silent streams are looked at.
constexpr std::chrono::milliseconds kTick{100};

constexpr std::string_view kModelPrefixes[] = {"/v1/models/", "/models/"};

// "/v1/models/" and "//v1//models" name what "/v1/models" does: clients join a base URL and a path
// with a slash too many.
std::string WithoutSpareSlashes(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c != '/' || out.empty() || out.back() != '/') out += c;
  }
  if (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}

Route RouteOf(std::string_view sent) {
  const std::string path = WithoutSpareSlashes(sent);
  if (path == "/v1/chat/completions") return Route::kChat;
  if (path == "/v1/completions") return Route::kCompletions;
  if (path == "/v1/models" || path == "/models") return Route::kModels;
  if (path == "/health") return Route::kHealth;
  if (path == "/metrics") return Route::kMetrics;
  if (path == "/version") return Route::kVersion;
  for (const std::string_view prefix : kModelPrefixes) {
    if (path.starts_with(prefix)) return Route::kModel;
  }
  return Route::kUnknown;
}

bool IsPost(Route route) { return route == Route::kChat || route == Route::kCompletions; }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low >= 0) {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Takes the same time for every wrong key of one length.
bool EqualSecrets(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i)
    difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

bool HasKey(const std::string& authorization, const std::string& key) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return false;
  const bool bearer =
      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(),
                 [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
  return bearer && EqualSecrets(std::string_view(authorization).substr(kScheme.size()), key);
}

int64_t LongestToken(const TextCodec& codec, int64_t vocab) {
  size_t longest = 0;
  for (int64_t id = 0; id < vocab; ++id)
    longest = std::max(longest, codec.TokenBytes(static_cast<TokenId>(id)).size());
  return static_cast<int64_t>(longest);
}

// What a request holds in the backend from its beginning to its end.
int64_t RequestBytes(const Prepared& prepared) {
  constexpr int64_t kBiasBytes = 48;
  const SamplingParams& sampling = prepared.request.sampling;
  int64_t tokens = 0;
  for (const PreparedPrompt& prompt : prepared.prompts)
    tokens += static_cast<int64_t>(prompt.tokens.size()) * sampling.n;
  const auto copies = static_cast<int64_t>(prepared.prompts.size()) + 1;
  tokens += copies * static_cast<int64_t>(sampling.stop_token_ids.size());
  return tokens * static_cast<int64_t>(sizeof(TokenId)) +
         copies * kBiasBytes * static_cast<int64_t>(sampling.logit_bias.size());
}

std::string Answers(int64_t count) {
  return std::to_string(count) + (count == 1 ? " answer" : " answers");
}

// No answer waits for it: "" until it is known.
std::string KnownFingerprint(const Backend& backend) {
  const std::optional<Result<std::string>> fingerprint = backend.fingerprint();
  return fingerprint && fingerprint->ok() ? **fingerprint : "";
}

ApiError ShuttingDown() {
  return ErrorFromStatus(
      Status(StatusCode::kUnavailable, "the server is shutting down; try another or later"));
}

}  // namespace

// Thread rule: everything but the inbox and `prepare` belongs to the I/O thread once Start has
// returned.
struct Server::Impl final : HttpHandler {
  Impl(ServerOptions o, Backend& b, const TextCodec& c)
      : options(std::move(o)),
        backend(b),
        codec(c),
        log(options.log != nullptr ? *options.log : no_log),
        services{.backend = b,
                 .codec = c,
                 .metrics = metrics,
                 .log = log,
                 .answers = answers,
                 .answer_bytes_max = options.answer_bytes_max,
                 .output_bytes_max = options.output_bytes_max} {}

  void OnRequest(std::shared_ptr<Exchange> exchange, HttpRequest request) override;
  HttpResponse OnProtocolError(int status, const std::string& message) override;
  void OnSignal() override;

  // What Answer tells the log of a request that is no generation.
  struct Asked {
    const HttpRequest& request;
    Headers headers;  // of every answer to it
  };

  Headers CommonHeaders(const std::string& request_id) const;
  void Answer(Exchange& exchange, HttpResponse response, const Asked& asked,
              std::optional<ApiError> error = {});
  void AnswerError(Exchange& exchange, const ApiError& error, const Asked& asked);
  void AnswerPreflight(Exchange& exchange, const Asked& asked);
  void AnswerModel(Exchange& exchange, std::string_view path, const Asked& asked);
  void AnswerGet(Exchange& exchange, Route route, const Asked& asked);
  void AnswerVersion(std::shared_ptr<Exchange> exchange, HttpRequest request, Headers headers);
  void AnswerVersionWaiters();
  void StartGeneration(std::shared_ptr<Exchange> exchange, Endpoint endpoint, HttpRequest request);
  void OnPrepared(Preparation& preparation);
  void TakeDeltas();
  template <typename Call>
  void With(uint64_t key, Call call);
  template <typename Call>
  void WithAll(Call call);
  void FailEverything(const ApiError& error);
  void Cut(const char* why);
  void Tick();
  void EndAfterFailure();
  void EndIfDrained();
  void Fault(std::string_view place) const {
    if (options.http.fault) options.http.fault(place);
  }
  std::string NewId(const char* prefix);

  const ServerOptions options;
  Backend& backend;
  const TextCodec& codec;
  NoLog no_log;
  Log& log;
  ModelCard card;
  Metrics metrics;
  const ByteBudget answers{options.held_answer_bytes_max};
  const GenerationServices services;
  struct Running {
    std::unique_ptr<Generation> generation;
    std::shared_ptr<std::atomic<bool>> lost;  // a Delta of it: set by a sink
  };
  std::unordered_map<uint64_t, Running> generations;
  struct VersionWaiter {
    std::shared_ptr<Exchange> exchange;
    HttpRequest request;
    Headers headers;
    std::shared_ptr<bool> wanted;  // false: the client has gone
  };
  std::vector<VersionWaiter> version_waiters;  // of GET /version; at most one a connection
  uint64_t busy = 0;  // key of the generation that is being called, 0: none
  uint64_t next_key = 1;
  std::mt19937_64 random{std::random_device{}()};
  int stop_requests = 0;
  std::atomic<int64_t> answers_cut{0};
  Clock::time_point drain_until;
  Status failure;  // of the backend
  Clock::time_point failed_at;
  bool failure_told = false;
  std::optional<PrepareQueue> prepare;
  std::shared_ptr<DeltaInbox> inbox;  // shared with the sinks, see DeltaInbox
  std::unique_ptr<HttpServer> http;   // last: its threads end first
};

Headers Server::Impl::CommonHeaders(const std::string& request_id) const {
  Headers headers;
  if (!request_id.empty()) headers.emplace_back("x-request-id", request_id);
  if (!options.cors_origin.empty()) {
    headers.emplace_back("access-control-allow-origin", options.cors_origin);
    headers.emplace_back("access-control-expose-headers",
                         "x-request-id, retry-after, x-sixfold-ignored");
  }
  return headers;
}

void Server::Impl::Answer(Exchange& exchange, HttpResponse response, const Asked& asked,
                          std::optional<ApiError> error) {
  response.headers.insert(response.headers.end(), asked.headers.begin(), asked.headers.end());
  ++metrics.responses[response.status];
  WriteOrLose(log, [&] {
    return RequestLine({.method = asked.request.method,
                        .path = asked.request.path,
                        .client_id = asked.request.request_id,
                        .status = response.status,
                        .error = std::move(error)});
  });
  exchange.Respond(std::move(response));
}

void Server::Impl::AnswerError(Exchange& exchange, const ApiError& error, const Asked& asked) {
  HttpResponse response{.status = error.status, .body = ErrorBody(error)};
  if (error.status == 503) response.headers.emplace_back("retry-after", "5");
  if (error.status == 415)
    response.headers.emplace_back("accept-encoding", std::string(kAcceptedCodings));
  if (error.status == 401) response.headers.emplace_back("www-authenticate", "Bearer");
  Answer(exchange, std::move(response), asked, error);
}

HttpResponse Server::Impl::OnProtocolError(int status, const std::string& message) {
  ApiError error{.status = status, .message = message, .code = "bad_request"};
  if (status == 413) error.code = "request_too_large";
  if (status == 431) error.code = "headers_too_large";
  if (status == 408) error.code = "request_timeout";
  if (status == 429 || status == 503)
    error = ErrorFromStatus(Status(StatusCode::kOverloaded, message));
  if (status >= 500) error.type = "internal_server_error";
  error.status = status;
  ++metrics.responses[status];
  WriteOrLose(log, [&] { return RequestLine({.method = "", .status = status, .error = error}); });
  HttpResponse response{.status = status, .body = ErrorBody(error), .headers = CommonHeaders("")};
  if (status == 429 || status == 503) response.headers.emplace_back("retry-after", "1");
  return response;
}

void Server::Impl::OnRequest(std::shared_ptr<Exchange> exchange, HttpRequest request) {
  const Asked asked{request, CommonHeaders(request.request_id)};
  if (request.method == "OPTIONS") return AnswerPreflight(*exchange, asked);
  const Route route = RouteOf(request.path);
  const bool open =
      route == Route::kHealth ||
      (route == Route::kMetrics && options.metrics_access == ServerOptions::MetricsAccess::kOpen);
  if (!open && !options.api_key.empty() && !HasKey(request.authorization, options.api_key)) {
    return AnswerError(*exchange,
                       {.status = 401,
                        .message = "Incorrect or missing API key; send it as "
                                   "'Authorization: Bearer KEY'",
                        .code = "invalid_api_key"},
                       asked);
  }
  if (route == Route::kUnknown) {
    return AnswerError(
        *exchange,
        {.status = 404, .message = "There is nothing at " + request.path, .code = "not_found"},
        asked);
  }
  const bool is_get = request.method == "GET" || request.method == "HEAD";
  if (IsPost(route) ? request.method != "POST" : !is_get) {
    ApiError error{.status = 405,
                   .message = request.method + " is not allowed for " + request.path,
                   .code = "method_not_allowed"};
    HttpResponse response{.status = 405, .body = ErrorBody(error)};
    response.headers.emplace_back("allow", IsPost(route) ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
    return Answer(*exchange, std::move(response), asked, error);
  }
  if (route == Route::kVersion)
    return AnswerVersion(std::move(exchange), std::move(request), asked.headers);
  if (!IsPost(route)) return AnswerGet(*exchange, route, asked);
  if (stop_requests > 0) return AnswerError(*exchange, ShuttingDown(), asked);
  StartGeneration(std::move(exchange),
                  route == Route::kChat ? Endpoint::kChat : Endpoint::kCompletions,
                  std::move(request));
}

void Server::Impl::AnswerPreflight(Exchange& exchange, const Asked& asked) {
  HttpResponse response{.status = 204, .content_type = ""};
  if (!options.cors_origin.empty()) {
    response.headers = {{"access-control-allow-methods", "GET, POST, OPTIONS"},
                        {"access-control-allow-headers", "*, authorization"},
                        {"access-control-max-age", "86400"}};
  }
  Answer(exchange, std::move(response), asked);
}

// A model's name may itself have spare slashes (a path that was not percent-encoded), so that the
// path as it was sent is tried first.
void Server::Impl::AnswerModel(Exchange& exchange, std::string_view path, const Asked& asked) {
  std::string name;
  for (const std::string& form : {std::string(path), WithoutSpareSlashes(path)}) {
    for (const std::string_view prefix : kModelPrefixes) {
      if (!form.starts_with(prefix)) continue;
      name = PercentDecode(std::string_view(form).substr(prefix.size()));
      if (std::find(card.names.begin(), card.names.end(), name) != card.names.end())
        return Answer(exchange, {.body = ModelBody(card, name)}, asked);
    }
  }
  AnswerError(exchange,
              {.status = 404,
               .message = "The model '" + name + "' does not exist",
               .param = "model",
               .code = "model_not_found"},
              asked);
}

void Server::Impl::AnswerGet(Exchange& exchange, Route route, const Asked& asked) {
  JsonWriter out;
  switch (route) {
    case Route::kModels: return Answer(exchange, {.body = ModelListBody(card)}, asked);
    case Route::kModel: return AnswerModel(exchange, asked.request.path, asked);
    case Route::kHealth:
      if (const Status health = backend.health(); !health.ok())
        return AnswerError(exchange, ErrorFromStatus(health), asked);
      if (stop_requests > 0) return AnswerError(exchange, ShuttingDown(), asked);
      out.BeginObject().Key("status").String("ok").EndObject();
      break;
    case Route::kMetrics:
      return Answer(exchange,
                    {.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = metrics.Render({.engine = backend.stats(),
                                             .engine_up = backend.health().ok(),
                                             .model_name = card.names.front(),
                                             .connections = http->connections()})},
                    asked);
    default: return;  // AnswerVersion
  }
  Answer(exchange, {.body = std::move(out).Take()}, asked);
}

// Waits for the fingerprint, which takes a while after the start of a large model; nothing else
// does.
void Server::Impl::AnswerVersion(std::shared_ptr<Exchange> exchange, HttpRequest request,
                                 Headers headers) {
  const std::optional<Result<std::string>> fingerprint = backend.fingerprint();
  if (!fingerprint && stop_requests == 0) {
    const auto wanted = std::make_shared<bool>(true);
    exchange->SetCallbacks([wanted] { *wanted = false; }, [] {});
    version_waiters.push_back(
        {std::move(exchange), std::move(request), std::move(headers), wanted});
    return backend.HurryFingerprint();
  }
  JsonWriter out;
  out.BeginObject().Key("version").String(options.version).Key("fingerprint");
  fingerprint && fingerprint->ok() ? out.String(**fingerprint) : out.Null();
  if (fingerprint && !fingerprint->ok())
    out.Key("fingerprint_error").String(fingerprint->status().message());
  out.EndObject();
  Answer(*exchange, {.body = std::move(out).Take()}, {request, std::move(headers)});
}

void Server::Impl::AnswerVersionWaiters() {
  std::erase_if(version_waiters, [](const VersionWaiter& w) { return !*w.wanted; });
  if (version_waiters.empty() || (!backend.fingerprint() && stop_requests == 0)) return;
  while (!version_waiters.empty()) {
    VersionWaiter waiter = std::move(version_waiters.back());
    version_waiters.pop_back();
    AnswerVersion(std::move(waiter.exchange), std::move(waiter.request), std::move(waiter.headers));
  }
}

std::string Server::Impl::NewId(const char* prefix) {
  char text[40];
  const int length =
      std::snprintf(text, sizeof text, "%016llx%08llx", static_cast<unsigned long long>(random()),
                    static_cast<unsigned long long>(random() >> 32));
  return prefix + std::string(text, static_cast<size_t>(length));
}

void Server::Impl::StartGeneration(std::shared_ptr<Exchange> exchange, Endpoint endpoint,
                                   HttpRequest request) {
  auto codings = ParseContentCodings(request.content_encoding);
  if (const auto* error = std::get_if<ApiError>(&codings))
    return AnswerError(*exchange, *error, {request, CommonHeaders(request.request_id)});
  if (prepare->full()) {
    const Status status(StatusCode::kOverloaded, "too many requests wait to be read; try again");
    return AnswerError(*exchange, ErrorFromStatus(status),
                       {request, CommonHeaders(request.request_id)});
  }
  const uint64_t key = next_key++;
  AnswerHead head{.endpoint = endpoint,
                  .id = NewId(endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-"),
                  .created = std::time(nullptr),
                  .model = card.names.front(),
                  .fingerprint = KnownFingerprint(backend)};
  Headers headers = CommonHeaders(request.request_id.empty() ? head.id : request.request_id);
  auto preparation = std::make_shared<Preparation>();
  preparation->key = key;
  preparation->endpoint = endpoint;
  preparation->codings = std::get<std::vector<ContentCoding>>(std::move(codings));
  preparation->body = std::move(request.body);
  preparation->lease = std::move(request.body_lease);
  const auto gone = [this, key] {
    prepare->Forget(key);
    With(key, [](Generation& g) { g.OnGone(); });
  };
  exchange->SetCallbacks(gone, [this, key] { With(key, [](Generation& g) { g.OnWritable(); }); });
  generations.emplace(
      key, Running{std::make_unique<Generation>(services, std::move(head), std::move(exchange),
                                                std::move(headers), std::move(request.request_id),
                                                Clock::now()),
                   std::make_shared<std::atomic<bool>>(false)});
  try {
    Fault("queue");
    prepare->Add(std::move(preparation));
  } catch (const std::exception& e) {
    With(key, [&](Generation& g) { g.GiveUp(e); });
  }
}

void Server::Impl::OnPrepared(Preparation& preparation) {
  const uint64_t key = preparation.key;
  With(key, [&](Generation& generation) {
    Fault("prepared");
    if (const char* why = preparation.exception.data(); *why != '\0') {
      return generation.Fail(
          ErrorFromStatus(Internal(std::string("the request could not be prepared: ") + why)));
    }
    if (const auto* error = std::get_if<ApiError>(&preparation.result))
      return generation.Fail(*error);
    auto& prepared = std::get<Prepared>(preparation.result);
    if (!preparation.lease.Resize(RequestBytes(prepared))) {
      preparation.lease.Release();
      return generation.Fail(ErrorFromStatus(
          Status(StatusCode::kOverloaded, "too much is held for other requests; try again")));
    }
    const auto sinks = [this, key](int prompt) -> Backend::Sink {
      return [inbox = inbox, lost = generations.at(key).lost, key, prompt](Delta delta) {
        if (!inbox->Push({key, prompt, std::move(delta)})) lost->store(true);
      };
    };
    generation.Begin(prepared.request, std::move(prepared.prompts), std::move(preparation.lease),
                     sinks);
  });
}

void Server::Impl::TakeDeltas() {
  for (DeltaInbox::Item& item : inbox->Take()) {
    With(item.generation, [&](Generation& g) {
      Fault("delta");
      g.OnDelta(item.prompt, std::move(item.delta));
    });
  }
}

// Calls into a generation that may end by it, and forgets it then. What is thrown ends that
// generation alone.
template <typename Call>
void Server::Impl::With(uint64_t key, Call call) {
  const auto it = generations.find(key);
  if (it == generations.end()) return;
  Generation& generation = *it->second.generation;
  // A call into a generation may lose its connection, which comes back to the same one.
  const uint64_t outer = std::exchange(busy, key);
  try {
    call(generation);
  } catch (const std::exception& e) {
    generation.GiveUp(e);
  }
  busy = outer;
  if (outer == key || !generation.done()) return;
  generations.erase(it);  // still valid: calls add none, and remove none but this one, here
  EndIfDrained();
}

template <typename Call>
void Server::Impl::WithAll(Call call) {
  for (auto it = generations.begin(); it != generations.end();) {
    const uint64_t key = (it++)->first;  // the call may remove it
    With(key, call);
  }
}

void Server::Impl::OnSignal() {
  if (++stop_requests == 1) drain_until = Clock::now() + options.drain_deadline;
  http->SetDraining();
  EndIfDrained();
  if (generations.empty()) return;
  if (stop_requests > 1) {
    answers_cut += static_cast<int64_t>(generations.size());
    return Cut("a second signal ends at once");
  }
  WriteOrLose(log, [this] {
    const auto count = static_cast<int64_t>(generations.size());
    const std::chrono::duration<double> deadline = options.drain_deadline;
    return LogLine{.event = "drain",
                   .message = "draining " + Answers(count) + "; Ctrl-C again ends at once",
                   .fields = {{"answers", count}, {"timeout_s", deadline.count()}}};
  });
}

void Server::Impl::Cut(const char* why) {
  if (generations.empty()) return;
  WriteOrLose(log, [&] {
    const auto count = static_cast<int64_t>(generations.size());
    return LogLine{.level = LogLevel::kWarning,
                   .event = "cut",
                   .message = "cutting " + Answers(count) + ": " + why,
                   .fields = {{"answers", count}}};
  });
  FailEverything(ShuttingDown());
}

void Server::Impl::FailEverything(const ApiError& error) {
  WithAll([&](Generation& g) { g.Fail(error); });
}

// Whatever has to happen some time, and happens here again should an exception have stopped it.
void Server::Impl::Tick() {
  Fault("tick");
  TakeDeltas();
  prepare->Collect();
  const auto silent_since = Clock::now() - options.keep_alive;
  for (auto it = generations.begin(); it != generations.end();) {
    const auto& [key, running] = *it++;
    const bool lost = running.lost->load();
    With(key, [&](Generation& g) {
      if (lost) return g.Fail(ErrorFromStatus(Internal("out of memory: a token was lost")));
      g.KeepAlive(silent_since);
    });
  }
  if (stop_requests > 1) FailEverything(ShuttingDown());
  if (stop_requests == 1 && Clock::now() > drain_until)
    Cut("the time to drain is over (--drain-timeout)");
  AnswerVersionWaiters();
  EndIfDrained();
  if (failure.ok()) {
    failure = backend.health();
    failed_at = Clock::now();
  }
  if (!failure.ok()) EndAfterFailure();
}

void Server::Impl::EndIfDrained() {
  if (stop_requests > 0 && generations.empty()) http->Stop();
}

// What runs has its error already, or gets it here when the backend cannot say so itself. Load
// balancers and new clients hear the reason for a while.
void Server::Impl::EndAfterFailure() {
  http->SetDraining();
  if (!std::exchange(failure_told, true)) {
    WriteOrLose(log, [this] {
      return LogLine{.level = LogLevel::kError,
                     .event = "failure",
                     .message = "the instance has failed: " + failure.message(),
                     .fields = {{"answers", static_cast<int64_t>(generations.size())}}};
    });
  }
  TakeDeltas();
  FailEverything(ErrorFromStatus(failure));
  if (Clock::now() >= failed_at + options.failure_linger) http->Stop();
}

Server::Server() = default;

Server::~Server() {
  if (!impl_) return;
  impl_->inbox->Close();
  impl_->http->Post([impl = impl_.get()] {
    impl->stop_requests = 2;
    impl->FailEverything(ShuttingDown());
    impl->http->Stop();
  });
  impl_->http->Join();
  impl_->generations.clear();  // before `http`, whose connections they hold
  impl_->version_waiters.clear();
}

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, Backend& backend,
                                              const TextCodec& codec) {
  if (options.served_model_names.empty())
    return InvalidArgument("the server needs a name for its model");
  std::unique_ptr<Server> server(new Server());
  SF_ASSIGN_OR_RETURN(auto http, HttpServer::Listen(options.http));
  server->impl_ = std::make_unique<Impl>(std::move(options), backend, codec);
  Impl& impl = *server->impl_;
  impl.http = std::move(http);
  const PrepareOptions prepare{
      .schema = {.vocab = backend.vocab(), .defaults = impl.options.defaults},
      .model_names = impl.options.served_model_names,
      .max_model_len = backend.max_model_len(),
      .token_bytes_max = LongestToken(codec, backend.vocab())};
  impl.prepare.emplace(*impl.http, codec,
                       PrepareQueueOptions{.prepare = prepare,
                                           .body_bytes_max = impl.options.http.max_body_bytes,
                                           .waiting_max = impl.options.http.max_connections,
                                           .fault = impl.options.http.fault},
                       [&impl](Preparation& done) { impl.OnPrepared(done); });
  impl.card = {.names = impl.options.served_model_names,
               .root = impl.options.root.empty() ? impl.options.served_model_names.front()
                                                 : impl.options.root,
               .created = std::time(nullptr),
               .max_model_len = backend.max_model_len()};
  impl.inbox = std::make_shared<DeltaInbox>([&impl] {
    impl.Fault("wake");
    impl.http->Post([&impl] { impl.TakeDeltas(); });
  });
  impl.http->Every(kTick, [&impl] { impl.Tick(); });
  impl.http->Start(impl);
  return server;
}

uint16_t Server::port() const { return impl_->http->port(); }

std::string Server::url() const {
  const std::string& host = impl_->options.http.host;
  const bool v6 = host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port());
}

void Server::RequestStop() {
  impl_->http->Post([impl = impl_.get()] { impl->OnSignal(); });
}

void Server::Wait() { impl_->http->Join(); }

int64_t Server::answers_cut() const { return impl_->answers_cut; }

}  // namespace sixfold::gateway
