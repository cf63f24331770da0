// What clients hear when the instance behind the gateway fails: the real server over the real
// engine, whose model fails at a given pass (engine/testing/fake_model.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "base/testing/log_recorder.h"
#include "engine/engine.h"
#include "engine/testing/fake_model.h"
#include "gateway/engine_backend.h"
#include "gateway/server.h"
#include "gateway/testing/byte_codec.h"
#include "gateway/testing/raw_client.h"

namespace sixfold::gateway {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kPath = "/v1/completions";

std::string Body(bool stream) {
  return Json{{"prompt", "ab"}, {"max_tokens", 400}, {"ignore_eos", true}, {"stream", stream}}
      .dump();
}

class EngineServer {
 public:
  EngineServer(FakeModelOptions model, ServerOptions server_options, EngineOptions options = {}) {
    model.vocab = kByteVocab;
    model.eos_ids = {kByteEos};
    auto started = Engine::StartWith(MakeFakeModel(model), options);
    SF_CHECK(started.ok());
    engine = std::move(started).value();
    backend.emplace(*engine, EngineBackend::Fingerprint{
                                 .poll = [] { return Result<std::string>(std::string("fp_fake")); },
                                 .hurry = [] {}});
    server_options.http.port = 0;
    server_options.served_model_names = {"m"};
    auto listening = Server::Start(std::move(server_options), *backend, codec);
    SF_CHECK(listening.ok());
    server = std::move(listening).value();
  }
  RawClient Connect() const { return RawClient(server->port()); }
  RawResponse Get(const std::string& path) const {
    RawClient client = Connect();
    client.Send(GetRequest(path));
    return client.ReadResponse();
  }

  std::unique_ptr<Engine> engine;
  std::optional<EngineBackend> backend;
  const ByteCodec codec;
  std::unique_ptr<Server> server;  // last: ends before what it uses
};

// Both have had their answers; now the rest of the world hears of it, and then the server ends.
void ExpectFailedAndEnding(const EngineServer& under) {
  const RawResponse health = under.Get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(Json::parse(health.body)["error"]["message"], kFakeFailure);
  RawClient late = under.Connect();
  late.Send(PostRequest(kPath, Body(true)));
  const RawResponse refused = late.ReadResponse();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(Json::parse(refused.body)["error"]["message"], kFakeFailure);
  EXPECT_THAT(under.Get("/metrics").body, HasSubstr("sixfold_engine_up{model_name=\"m\"} 0\n"));
  const auto before = std::chrono::steady_clock::now();
  under.server->Wait();
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(5));
  EXPECT_FALSE(RawClient(under.server->port()).Send("x")) << "nobody listens any more";
}

TEST(Failure, EveryClientHearsTheReasonAndTheServerEnds) {
  StepGate gate;
  LogRecorder log;
  EngineServer under({.gate = &gate, .fail_at_pass = 6},
                     {.failure_linger = milliseconds(700), .log = &log},
                     {.max_num_seqs = 2, .max_num_batched_tokens = 16});
  EXPECT_EQ(under.Get("/health").status, 200);
  EXPECT_THAT(under.Get("/metrics").body, HasSubstr("sixfold_engine_up{model_name=\"m\"} 1\n"));
  gate.Close();
  RawClient streaming = under.Connect(), waiting = under.Connect(), queued = under.Connect();
  streaming.Send(PostRequest(kPath, Body(true)));
  EXPECT_THAT(streaming.ReadUntil("\r\n\r\n"), HasSubstr("200 OK"));
  waiting.Send(PostRequest(kPath, Body(false)));
  queued.Send(PostRequest(kPath, Body(false)));
  while (under.engine->stats().waiting + under.engine->stats().running < 3)
    std::this_thread::sleep_for(milliseconds(1));
  gate.Open();
  const std::string stream = streaming.ReadUntil("[DONE]\n\n");
  EXPECT_THAT(stream, HasSubstr("\"text\":"));  // what was computed before
  EXPECT_THAT(stream, HasSubstr(std::string("data: {\"error\":{\"message\":\"") + kFakeFailure));
  EXPECT_THAT(stream, Not(HasSubstr("\"finish_reason\":\"")));
  EXPECT_THAT(streaming.ReadUntil("0\r\n\r\n"), HasSubstr("0\r\n\r\n")) << "the end of the stream";
  for (RawClient* client : {&waiting, &queued}) {
    const RawResponse response = client->ReadResponse();
    EXPECT_EQ(response.status, 503);
    const Json error = Json::parse(response.body)["error"];
    EXPECT_EQ(error["message"], kFakeFailure);
    EXPECT_EQ(error["type"], "service_unavailable_error");
  }
  ExpectFailedAndEnding(under);
  const std::vector<LogLine> told = log.Of("failure");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].message, std::string("the instance has failed: ") + kFakeFailure);
  EXPECT_EQ(told[0].level, LogLevel::kError);
}

TEST(Failure, AnIdleInstanceIsFoundDeadToo) {
  std::atomic<bool> dead = false;
  EngineServer under({.dead = &dead}, {.failure_linger = milliseconds(700)});
  EXPECT_EQ(under.Get("/health").status, 200);
  dead = true;
  ExpectFailedAndEnding(under);
}

TEST(Failure, APassThatHangsWhileTheModelIsKnownToBeBrokenKeepsNobodyWaiting) {
  StepGate gate;
  std::atomic<bool> dead = false;
  EngineServer under({.gate = &gate, .dead = &dead}, {.failure_linger = milliseconds(100)});
  gate.Close();
  RawClient streaming = under.Connect(), waiting = under.Connect();
  streaming.Send(PostRequest(kPath, Body(true)));
  EXPECT_THAT(streaming.ReadUntil("\r\n\r\n"), HasSubstr("200 OK"));
  waiting.Send(PostRequest(kPath, Body(false)));
  ASSERT_TRUE(gate.WaitUntilBlocked());
  dead = true;
  EXPECT_THAT(streaming.ReadUntil("[DONE]\n\n"), HasSubstr(kFakeFailure));
  EXPECT_EQ(waiting.ReadResponse().status, 503);
  under.server->Wait();
  gate.Open();
}

TEST(KeepAlive, SilentStreamsGetCommentsThatNoSdkSees) {
  StepGate gate;
  EngineServer under({.gate = &gate}, {.keep_alive = milliseconds(150)});
  gate.Close();
  RawClient streaming = under.Connect(), waiting = under.Connect();
  streaming.Send(PostRequest(kPath, Body(true)));
  waiting.Send(PostRequest(kPath, Body(false)));
  EXPECT_THAT(streaming.ReadUntil(": keep-alive\n\n"), HasSubstr("200 OK"));
  EXPECT_THAT(streaming.ReadUntil(": keep-alive\n\n"), Not(HasSubstr("data:")));
  gate.Open();
  EXPECT_THAT(streaming.ReadUntil("[DONE]\n\n"), HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(waiting.ReadResponse().body, Not(HasSubstr("keep-alive")));
}

}  // namespace
}  // namespace sixfold::gateway
