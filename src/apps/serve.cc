// sixfold serve: loads, listens, prints how to ask, drains on SIGTERM.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/build_info.h"
#include "apps/commands.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/log.h"
#include "apps/machine.h"
#include "apps/memory_table.h"
#include "apps/output.h"
#include "apps/sampling.h"
#include "apps/text_loading.h"
#include "base/machine.h"
#include "base/plural.h"
#include "gateway/engine_backend.h"
#include "gateway/server.h"
#include "gateway/token_id_codec.h"
#include "gateway/tokenizer_codec.h"
#include "text/utf8.h"
#include "weights/weight_store.h"
#include "weights/weights_hash.h"

namespace sixfold::apps {
namespace {

gateway::ServerOptions ServerOptionsFrom(const Options& options, const LoadedModel& loaded) {
  gateway::ServerOptions out;
  out.http.host = options.Text("host");
  out.http.port = static_cast<uint16_t>(options.Integer("port"));
  out.http.handle_signals = true;
  out.served_model_names = options.Texts("served-model-name");
  if (out.served_model_names.empty()) out.served_model_names = {ReplaceInvalidUtf8(loaded.name)};
  out.root = ReplaceInvalidUtf8(loaded.path);
  out.api_key = options.Text("api-key");
  if (options.Flag("protect-metrics"))
    out.metrics_access = gateway::ServerOptions::MetricsAccess::kWithKey;
  out.version = SIXFOLD_VERSION;
  out.defaults = loaded.generation;
  out.drain_deadline = std::chrono::seconds(options.Integer("drain-timeout"));
  return out;
}

std::unique_ptr<gateway::TextCodec> CodecFor(const Tokenizer* tokenizer,
                                             const std::optional<std::string>& given_template) {
  if (tokenizer == nullptr) return std::make_unique<gateway::TokenIdCodec>();
  return std::make_unique<gateway::TokenizerCodec>(*tokenizer, given_template.value_or(""));
}

enum class Example : uint8_t { kChat, kText, kTokens };

Example ExampleFor(const Tokenizer* tokenizer, bool template_given) {
  if (tokenizer == nullptr) return Example::kTokens;
  return template_given || !tokenizer->chat_templates().empty() ? Example::kChat : Example::kText;
}

struct Greeted {
  std::string url;
  std::string model;
  Example example = Example::kChat;
  bool with_key = false;
  int64_t max_model_len = 0;
  int64_t requests_max = 0;  // that run together
};

std::string Greeting(const Greeted& to) {
  nlohmann::ordered_json body = {{"model", to.model}};
  switch (to.example) {
    case Example::kChat: body["messages"] = {{{"role", "user"}, {"content", "Hello!"}}}; break;
    case Example::kText: body["prompt"] = "Once upon a time"; break;
    case Example::kTokens: body["prompt"] = {1, 2, 3}; break;
  }
  body["max_tokens"] = 64;
  return fmt::format(
      "Serving {} at {}/v1: up to {} a request, {} at a time. Ctrl-C ends it. "
      "Try:\n\n"
      "  curl {}/v1/{} -H 'Content-Type: application/json'{} \\\n    -d {}\n\n",
      to.model, to.url, Plural(to.max_model_len, "token"), Plural(to.requests_max, "request"), to.url,
      to.example == Example::kChat ? "chat/completions" : "completions",
      to.with_key ? " -H \"Authorization: Bearer $SIXFOLD_API_KEY\"" : "", ShellQuoted(body.dump()));
}

// What a person who looks for the reason of something asks first.
LogLine StartLine(const LoadedModel& loaded, const Engine& engine, const gateway::Server& server,
                  const std::string& name) {
  const BuildInfo build = GetBuildInfo();
  const EngineOptions& options = engine.options();
  return {.event = "start",
          .message = "serving at " + server.url(),
          .fields = {{"model", name},
                     {"layout", loaded.layout.ToString()},
                     {"ranks", int64_t{loaded.layout.world()}},
                     {"threads", int64_t{loaded.options.threads}},
                     {"isa", std::string(NameOf(loaded.options.isa))},
                     {"dtype", std::string(NameOf(loaded.options.act))},
                     {"weights_bytes", static_cast<int64_t>(loaded.store->file_bytes())},
                     {"kv_cache_bytes", options.kv_cache_memory_bytes},
                     {"memory_available_bytes", AvailableMemoryBytes()},
                     {"max_model_len", options.max_model_len},
                     {"max_num_seqs", int64_t{options.max_num_seqs}},
                     {"pid", int64_t{::getpid()}},
                     {"version", build.version},
                     {"commit", build.commit}}};
}

Status Serve(const Options& options, LoadedModel loaded, const Tokenizer* tokenizer,
             const std::optional<std::string>& given_template, Log& log) {
  gateway::ServerOptions server_options = ServerOptionsFrom(options, loaded);
  server_options.log = &log;
  const std::string name = server_options.served_model_names.front();
  EngineOptions engine_options = EngineOptionsFrom(options);
  engine_options.warm_up = EngineOptions::WarmUp::kYes;
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      Engine::StartWith(std::move(loaded.model), engine_options));
  if (std::string remark = SmallKvRemark(options, *engine, loaded.config, loaded.layout); !remark.empty())
    log.Write({.level = LogLevel::kWarning, .event = "kv_cache_memory", .message = std::move(remark)});
  gateway::EngineBackend backend(*engine, {.poll = [&loaded] { return loaded.PollFingerprint(); },
                                           .hurry = [&loaded] { loaded.store->hash().Hurry(); }});
  const std::unique_ptr<gateway::TextCodec> codec = CodecFor(tokenizer, given_template);
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<gateway::Server> server,
                      gateway::Server::Start(std::move(server_options), backend, *codec));
  const auto replicas = static_cast<int64_t>(engine->stats().replicas.size());
  const std::string greeting =
      Greeting({.url = server->url(),
                .model = name,
                .example = ExampleFor(tokenizer, given_template.has_value()),
                .with_key = !options.Text("api-key").empty(),
                .max_model_len = engine->options().max_model_len,
                .requests_max = engine->options().max_num_seqs * replicas});
  log.Write(StartLine(loaded, *engine, *server, name));
  // A closed stdout is no reason to stop serving.
  [[maybe_unused]] const Status printed = Print(greeting);
  server->Wait();
  if (!engine->health().ok())
    return Status(StatusCode::kUnavailable, "ended, because the instance has failed");
  SF_RETURN_IF_ERROR(WriteStats(options, loaded.layout, engine->stats().experts, loaded.group));
  if (const int64_t cut = server->answers_cut(); cut > 0) {
    return Status(StatusCode::kUnavailable, fmt::format("ended by a second signal: {} answer{} cut", cut,
                                                cut == 1 ? " was" : "s were"));
  }
  log.Write({.event = "end", .message = "drained, bye"});
  return OkStatus();
}

}  // namespace

Status RunServe(const Options& options, const Launch& launch) {
  if (options.Flag("protect-metrics") && options.Text("api-key").empty()) {
    return InvalidArgument(
        "--protect-metrics asks for the key of --api-key at /metrics; give --api-key, too");
  }
  const std::unique_ptr<Log> log = OpenLog(LogOptionsFrom(options));
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  // Said before a model is loaded for nothing; the server finds out for certain.
  SF_RETURN_IF_ERROR(
      CheckPort(options.Text("host"), static_cast<uint16_t>(options.Integer("port"))));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFor(options, path));
  if (tokenizer == nullptr) {
    log->Write({.level = LogLevel::kWarning,
                .event = "no_tokenizer",
                .message = "no tokenizer: prompts are token ids; name one with --tokenizer"});
  }
  SF_ASSIGN_OR_RETURN(const std::optional<std::string> given_template, ChatTemplateFrom(options));
  SF_ASSIGN_OR_RETURN(
      LoadedModel loaded, LoadModel(options, launch, tokenizer.get(), {}, [&](const std::string& summary) {
        log->Write({.event = "loaded", .message = summary});
      }));
  if (tokenizer != nullptr && tokenizer->vocab_size() > loaded.config.vocab) {
    log->Write({.level = LogLevel::kWarning,
                .event = "vocabulary",
                .message = fmt::format("the tokenizer knows {}, the model {}; prompts with "
                                       "others are refused",
                                       Plural(tokenizer->vocab_size(), "token"), loaded.config.vocab)});
  }
  return Serve(options, std::move(loaded), tokenizer.get(), given_template, *log);
}

}  // namespace sixfold::apps
