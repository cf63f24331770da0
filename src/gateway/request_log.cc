#include "gateway/request_log.h"

#include <utility>

namespace sixfold::gateway {
namespace {

LogLevel LevelOf(const RequestRecord& record) {
  if (record.status >= 500 || record.slow_client) return LogLevel::kWarning;
  if (record.error) return record.error->status >= 500 ? LogLevel::kWarning : LogLevel::kInfo;
  return record.method == "POST" ? LogLevel::kInfo : LogLevel::kDebug;
}

// Messages may quote the request: a template's own words, a value of the wrong type. Those that
// cannot are told.
bool IsFreeOfContent(const ApiError& error) {
  return error.code == "model_not_found" || error.status == 401 || error.status == 429 ||
         error.status == 503;
}

std::string Joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ",") + word;
  return out;
}

}  // namespace

LogLine RequestLine(const RequestRecord& record) {
  LogLine line{.level = LevelOf(record), .event = "request"};
  const auto add = [&line](const char* name, auto value) {
    line.fields.push_back({name, std::move(value)});
  };
  const auto text = [&](const char* name, const std::string& value) {
    if (!value.empty()) add(name, value);
  };
  const auto maybe = [&](const char* name, const auto& value) {
    if (value) add(name, *value);
  };
  text("id", record.id);
  text("request_id", record.client_id);
  text("method", record.method);
  text("endpoint", record.path);
  text("model", record.model);
  add("status", int64_t{record.status});
  text("finish", Joined(record.finish_reasons));
  maybe("prompt_tokens", record.prompt_tokens);
  maybe("cached_tokens", record.cached_tokens);
  maybe("completion_tokens", record.completion_tokens);
  maybe("queue_ms", record.queue_ms);
  maybe("ttft_ms", record.ttft_ms);
  maybe("tpot_ms", record.tpot_ms);
  maybe("total_ms", record.total_ms);
  if (record.stream) add("stream", true);
  if (record.client_gone) add("client_gone", true);
  if (record.slow_client) add("slow_client", true);
  text("ignored_fields", record.ignored);
  if (record.error) {
    text("error", record.error->code);
    text("param", record.error->param);
    if (IsFreeOfContent(*record.error)) text("reason", record.error->message);
  }
  return line;
}

}  // namespace sixfold::gateway
