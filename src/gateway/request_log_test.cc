// What the log says of requests, over the real server: a line each, with what an operator needs and
// nothing of what was asked or answered.
#include "gateway/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/testing/log_recorder.h"
#include "engine/engine.h"
#include "engine/testing/fake_model.h"
#include "gateway/engine_backend.h"
#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kPath = "/v1/completions";

std::string Text(const LogLine& line, const std::string& name) {
  return FieldOf<std::string>(line, name).value_or("-");
}
int64_t Number(const LogLine& line, const std::string& name) {
  return FieldOf<int64_t>(line, name).value_or(-1);
}

// The only line of a request, which may be written a moment after its answer.
LogLine OnlyLine(const LogRecorder& log) {
  for (int i = 0; i < 2000 && log.Of("request").empty(); ++i)
    std::this_thread::sleep_for(milliseconds(5));
  const std::vector<LogLine> lines = log.Of("request");
  EXPECT_EQ(lines.size(), 1u);
  return lines.empty() ? LogLine{} : lines[0];
}

TEST(RequestLog, AnAnswersLineHasItsTokensAndTimes) {
  for (const bool stream : {false, true}) {
    LogRecorder log;
    TestServer under(SayText("abcdef"), {.log = &log});
    const Json body = {
        {"prompt", {"xy", "xyz"}}, {"n", 2}, {"max_tokens", 4}, {"stream", stream}, {"zeta", 1}};
    const RawResponse answer = under.Post(kPath, body.dump(), "x-request-id: mine\r\n");
    ASSERT_EQ(answer.status, 200);
    const LogLine line = OnlyLine(log);
    EXPECT_EQ(line.level, LogLevel::kInfo);
    EXPECT_THAT(answer.body, HasSubstr(Text(line, "id")));
    EXPECT_EQ(Text(line, "request_id"), "mine");
    EXPECT_EQ(Text(line, "endpoint"), kPath);
    EXPECT_EQ(Number(line, "status"), 200);
    EXPECT_EQ(Text(line, "finish"), "length");
    EXPECT_EQ(Number(line, "prompt_tokens"), 2 + 3 + 2) << "each with BOS";
    EXPECT_EQ(Number(line, "cached_tokens"), 0);
    EXPECT_EQ(Number(line, "completion_tokens"), 16);
    EXPECT_EQ(FieldOf<bool>(line, "stream").value_or(false), stream);
    EXPECT_FALSE(FieldOf<bool>(line, "client_gone"));
    EXPECT_EQ(Text(line, "ignored_fields"), "zeta");
    const double ttft = FieldOf<double>(line, "ttft_ms").value_or(-1),
                 tpot = FieldOf<double>(line, "tpot_ms").value_or(-1);
    EXPECT_GT(ttft, 0);
    EXPECT_GT(tpot, 0);
    EXPECT_LE(ttft + 3 * tpot, FieldOf<double>(line, "total_ms").value_or(0) + 1e-6);
  }
}

TEST(RequestLog, TheQueueIsTheTimeUntilTheFirstStep) {
  StepGate gate;
  const ByteCodec codec;
  auto engine =
      Engine::StartWith(MakeFakeModel({.vocab = kByteVocab, .eos_ids = {kByteEos}, .gate = &gate}),
                        {.max_num_seqs = 1});
  ASSERT_TRUE(engine.ok());
  EngineBackend backend(**engine, {.poll = [] { return Result<std::string>("fp"); }, .hurry = [] {}});
  LogRecorder log;
  auto server = Server::Start({.http = {.port = 0}, .served_model_names = {"m"}, .log = &log},
                              backend, codec);
  ASSERT_TRUE(server.ok());
  const std::string body = Json{{"prompt", "ab"}, {"max_tokens", 2}, {"ignore_eos", true}}.dump();
  gate.Close();
  RawClient running((*server)->port()), queued((*server)->port());
  running.Send(PostRequest(kPath, body));
  ASSERT_TRUE(gate.WaitUntilBlocked());
  queued.Send(PostRequest(kPath, body, "x-request-id: queued\r\n"));
  while ((*engine)->stats().waiting < 1) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(60));
  gate.Open();
  EXPECT_EQ(running.ReadResponse().status, 200);
  EXPECT_EQ(queued.ReadResponse().status, 200);
  for (const LogLine& line : log.Of("request")) {
    const double queue = FieldOf<double>(line, "queue_ms").value_or(-1),
                 ttft = FieldOf<double>(line, "ttft_ms").value_or(-1);
    EXPECT_GE(queue, Text(line, "request_id") == "queued" ? 60 : 0);
    EXPECT_LE(queue, ttft);
  }
  EXPECT_EQ(log.Of("request").size(), 2u);
}

TEST(RequestLog, RefusalsAreToldWithoutWhatWasAsked) {
  LogRecorder log;
  TestServer under(SayText("a"), {.api_key = "secret-key", .log = &log});
  const std::string key = "authorization: Bearer secret-key\r\n";
  const std::string secret = "my private words";
  struct Case {
    std::string path, body, headers;
    int status;
    std::string error;
  };
  const Case cases[] = {
      {kPath, Json{{"prompt", secret}, {"temperature", secret}}.dump(), key, 400, "invalid_type"},
      {kPath, Json{{"prompt", secret}, {"model", "other"}}.dump(), key, 404, "model_not_found"},
      {kChatPath, Json{{"messages", {{{"role", 5}, {"content", secret}}}}}.dump(), key, 400, "-"},
      {kPath, "{" + secret, key, 400, "-"},
      {kPath, Json{{"prompt", secret}}.dump(), "authorization: Bearer wrong-key\r\n", 401,
       "invalid_api_key"},
      {"/v2/nothing", "{}", key, 404, "not_found"},
  };
  size_t count = 0;
  for (const Case& one : cases) {
    ASSERT_EQ(under.Post(one.path, one.body, one.headers).status, one.status) << one.body;
    const std::vector<LogLine> lines = log.Of("request");
    ASSERT_EQ(lines.size(), ++count);
    const LogLine& line = lines.back();
    EXPECT_EQ(line.level, LogLevel::kInfo);
    EXPECT_EQ(Number(line, "status"), one.status);
    EXPECT_EQ(Text(line, "endpoint"), one.path);
    EXPECT_NE(Text(line, "error"), "-");
    if (one.error != "-") {
      EXPECT_EQ(Text(line, "error"), one.error);
    }
    for (const LogField& field : line.fields) {
      const std::string* text = std::get_if<std::string>(&field.value);
      if (text == nullptr) continue;
      EXPECT_THAT(*text, Not(HasSubstr("private"))) << field.name;
      EXPECT_THAT(*text, Not(HasSubstr("-key"))) << field.name;
    }
  }
  EXPECT_THAT(Text(log.Of("request")[1], "reason"), HasSubstr("'other'"));
  RawClient broken = under.Connect();
  broken.Send("NONSENSE\r\n\r\n");
  EXPECT_EQ(broken.ReadResponse().status, 400);
  EXPECT_EQ(Number(log.Of("request").back(), "status"), 400);
  EXPECT_EQ(under.Get("/health").status, 200);
  EXPECT_EQ(log.Of("request").back().level, LogLevel::kDebug) << "probes come every few seconds";
}

TEST(RequestLog, AClientThatLeavesIsTold) {
  for (const bool stream : {false, true}) {
    LogRecorder log;
    ScriptOptions script = SayText("abc");
    script.max_model_len = 1 << 30;
    TestServer under(script, {.log = &log});
    RawClient client = under.Connect();
    client.Send(PostRequest(
        kPath,
        Json{{"prompt", "p"}, {"max_tokens", 1000000}, {"ignore_eos", true}, {"stream", stream}}
            .dump()));
    if (stream) client.ReadUntil("data: ");
    ASSERT_TRUE(under.backend.WaitSubmitted(1, std::chrono::seconds(20)));
    client.Close();
    const LogLine line = OnlyLine(log);
    EXPECT_EQ(FieldOf<bool>(line, "client_gone"), true);
    EXPECT_EQ(Text(line, "finish"), "abort");
    EXPECT_EQ(Number(line, "status"), stream ? 200 : 499);
    EXPECT_EQ(Number(line, "prompt_tokens"), 2);
    EXPECT_GE(Number(line, "completion_tokens"), stream ? 1 : 0);
  }
}

// First: drained, and said so. Second: cut, said so, and counted.
TEST(RequestLog, DrainingAndCuttingAreTold) {
  LogRecorder log;
  TestServer under(SayText("abc"), {.drain_deadline = std::chrono::seconds(60), .log = &log});
  const std::string body =
      Json{{"prompt", "p"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", true}}.dump();
  RawClient clients[] = {under.Connect(), under.Connect(), under.Connect()};
  for (RawClient& client : clients) client.Send(PostRequest(kPath, body));
  for (RawClient& client : clients) client.ReadUntil("data: ");
  under.server->RequestStop();
  for (int i = 0; i < 2000 && log.Of("drain").empty(); ++i)
    std::this_thread::sleep_for(milliseconds(5));
  ASSERT_EQ(log.Of("drain").size(), 1u);
  EXPECT_EQ(log.Of("drain")[0].message, "draining 3 answers; Ctrl-C again ends at once");
  EXPECT_TRUE(log.Of("cut").empty());
  under.server->RequestStop();
  under.server->Wait();
  ASSERT_EQ(log.Of("cut").size(), 1u);
  EXPECT_EQ(log.Of("cut")[0].level, LogLevel::kWarning);
  EXPECT_THAT(log.Of("cut")[0].message, HasSubstr("3 answers"));
  EXPECT_EQ(under.server->answers_cut(), 3);
  const std::vector<LogLine> lines = log.Of("request");
  ASSERT_EQ(lines.size(), 3u);
  for (const LogLine& line : lines) {
    EXPECT_EQ(Text(line, "finish"), "error");
    EXPECT_EQ(Text(line, "error"), "unavailable");
    EXPECT_EQ(line.level, LogLevel::kWarning);
  }
}

TEST(RequestLog, TheEndOfTheTimeToDrainIsToldAndIsNoSecondSignal) {
  LogRecorder log;
  TestServer under(SayText("abc"), {.drain_deadline = milliseconds(50), .log = &log});
  RawClient client = under.Connect();
  client.Send(PostRequest(
      kPath,
      Json{{"prompt", "p"}, {"max_tokens", 4000}, {"ignore_eos", true}, {"stream", true}}.dump()));
  client.ReadUntil("data: ");
  under.server->RequestStop();
  under.server->Wait();
  EXPECT_EQ(log.Of("drain")[0].message, "draining 1 answer; Ctrl-C again ends at once");
  ASSERT_EQ(log.Of("cut").size(), 1u);
  EXPECT_THAT(log.Of("cut")[0].message, HasSubstr("1 answer: the time to drain is over"));
  EXPECT_EQ(under.server->answers_cut(), 0);
}

}  // namespace
}  // namespace sixfold::gateway
