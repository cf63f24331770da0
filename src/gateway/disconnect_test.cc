// Clients that go away at any moment: what they asked for is aborted at once, and the server goes
// on.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using std::chrono::milliseconds;

constexpr const char* kPath = "/v1/completions";

ScriptOptions Endless() {
  ScriptOptions script = SayText("abc");
  script.max_model_len = 1 << 30;
  return script;
}

std::string EndlessBody(bool stream, int n = 1) {
  return "{\"prompt\":\"p\",\"max_tokens\":1000000,\"ignore_eos\":true,\"n\":" + std::to_string(n) +
         (stream ? ",\"stream\":true}" : "}");
}

uint64_t Random(int client, int what) {
  return RandomBits({.seed = 11,
                     .choice = static_cast<uint32_t>(client),
                     .position = static_cast<uint32_t>(what)})[0];
}

TEST(Disconnect, StreamingRunningAndQueuedAreAborted) {
  ScriptOptions script = Endless();
  script.max_running = 2;
  TestServer under(script);
  RawClient streaming = under.Connect(), waiting = under.Connect(), queued = under.Connect();
  streaming.Send(PostRequest(kPath, EndlessBody(true)));
  streaming.ReadUntil("data: ");
  waiting.Send(PostRequest(kPath, EndlessBody(false)));
  std::this_thread::sleep_for(milliseconds(50));
  queued.Send(PostRequest(kPath, EndlessBody(false)));
  ASSERT_TRUE(under.backend.WaitSubmitted(3, std::chrono::seconds(5)));
  EXPECT_EQ(under.backend.stats().waiting, 1);
  queued.Close();
  while (under.backend.stats().aborted < 1) std::this_thread::sleep_for(milliseconds(5));
  waiting.Close();
  streaming.Reset();
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(5)));
  EXPECT_EQ(under.backend.stats().aborted, 3u);
  EXPECT_EQ(under.backend.stats().blocks_used, 0);
}

TEST(Disconnect, TwoHundredClientsAtRandomPoints) {
  constexpr int kClients = 200;
  ScriptOptions script = Endless();
  script.step_time = std::chrono::microseconds(200);
  script.max_running = 64;
  TestServer under(script);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> answered{0};  // clients that saw some of their answer
  // Each client stops at a point of its own: inside the request, right after it, or after some of
  // the answer.
  for (int worker = 0; worker < 8; ++worker) {
    threads.emplace_back([&under, &answered, worker] {
      for (int i = worker; i < kClients; i += 8) {
        RawClient client = under.Connect();
        const bool stream = Random(i, 0) % 2 == 0;
        const std::string request =
            PostRequest(kPath, EndlessBody(stream, 1 + static_cast<int>(Random(i, 1) % 3)));
        const uint64_t point = Random(i, 2) % 4;
        if (point == 0) {
          client.Send(std::string_view(request).substr(0, Random(i, 3) % request.size()));
        } else {
          client.Send(request);
        }
        if (point == 2) std::this_thread::sleep_for(milliseconds(Random(i, 4) % 20));
        const uint64_t events = stream && point == 3 ? Random(i, 5) % 20 : 0;
        for (uint64_t seen = 0; seen < events; ++seen) client.ReadUntil("data: ");
        if (events > 0) ++answered;
        Random(i, 6) % 2 ? client.Reset() : client.Close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A request may still be on its way through the workers when the queue looks empty.
  for (int quiet = 0; quiet < 3;) {
    ASSERT_TRUE(under.backend.WaitIdle(std::chrono::seconds(20)));
    const uint64_t before = under.backend.submitted();
    std::this_thread::sleep_for(milliseconds(50));
    quiet =
        before == under.backend.submitted() && under.backend.stats().running == 0 ? quiet + 1 : 0;
  }
  const EngineStats stats = under.backend.stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.blocks_used, 0);
  // The others may be gone before their request is read: a slow machine sees few of them.
  EXPECT_GT(answered, 10u);
  EXPECT_GE(under.backend.submitted(), answered);
  EXPECT_GE(stats.aborted, under.backend.submitted())
      << "every one was aborted, none ran to its end";
  EXPECT_EQ(stats.finished_length, 0u);
  EXPECT_EQ(under.Post(kPath, R"({"prompt":"p"})").status, 200) << "the next request answers";
  const std::string metrics = under.Get("/metrics").body;
  EXPECT_NE(metrics.find("sixfold_http_connections{model_name=\"m\"} 1\n"), std::string::npos);
}

TEST(Disconnect, IsSeenBehindPipelinedInputThatIsNotReadAnyMore) {
  TestServer under(Endless());
  RawClient client = under.Connect();
  client.Send(PostRequest(kPath, EndlessBody(false)));
  client.timeout = milliseconds(100);
  size_t sent = 0;
  client.SendAvailable(std::string(8 << 20, 'x'), &sent);
  EXPECT_LT(sent, size_t{8} << 20) << "the server does not read without bound";
  ASSERT_TRUE(under.backend.WaitSubmitted(1, std::chrono::seconds(5)));
  client.Close();
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(4)));
  EXPECT_EQ(under.backend.stats().aborted, 1u);
}

TEST(Disconnect, OneOfSeveralOnAConnectionTakesTheLaterOnesWithIt) {
  TestServer under(Endless());
  RawClient client = under.Connect();
  client.Send(PostRequest(kPath, EndlessBody(true)) + PostRequest(kPath, EndlessBody(true)));
  client.ReadUntil("data: ");
  client.Close();
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(5)));
  EXPECT_EQ(under.backend.submitted(), 1u);
}

TEST(Disconnect, AnAnswerThatIsCompleteStillReachesAClientThatStoppedSending) {
  TestServer under(Endless());
  RawClient client = under.Connect();
  client.Send(GetRequest("/health"));
  client.ShutdownSend();
  EXPECT_EQ(client.ReadResponse().status, 200);
}

TEST(Disconnect, TheServerMayEndWhileClientsWait) {
  ScriptOptions script = Endless();
  auto under = std::make_unique<TestServer>(script);
  RawClient streaming = under->Connect(), waiting = under->Connect();
  streaming.Send(PostRequest(kPath, EndlessBody(true)));
  waiting.Send(PostRequest(kPath, EndlessBody(false)));
  streaming.ReadUntil("data: ");
  under.reset();
  EXPECT_TRUE(streaming.ReadEof());
  EXPECT_TRUE(waiting.ReadEof());
}

}  // namespace
}  // namespace sixfold::gateway
