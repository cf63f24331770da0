// Out of memory at every place of the server: whom it hits loses an answer or a connection, nobody
// waits for ever, everybody else is served, and what goes on by itself (accepting, timeouts,
// signals, draining) still does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <new>
#include <thread>

#include "gateway/testing/allocations.h"
#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr const char* kPath = "/v1/completions";
constexpr const char* kBody = R"({"prompt":"p","max_tokens":8})";
constexpr const char* kStream = R"({"prompt":"p","stream":true,"max_tokens":200})";
constexpr const char* kEndless =
    R"({"prompt":"p","stream":true,"ignore_eos":true,"max_tokens":100000000})";

// Throws bad_alloc at a place, so many times.
struct Faults {
  explicit Faults(std::string_view name) : place(name) {}
  std::function<void(std::string_view)> Hook() {
    return [this](std::string_view at) {
      if (at != place) return;
      int expected = left.load();
      while (expected > 0) {
        if (left.compare_exchange_weak(expected, expected - 1)) throw std::bad_alloc();
      }
    };
  }
  bool WaitUsed() const {
    for (int i = 0; i < 20'000 && left > 0; ++i) std::this_thread::sleep_for(milliseconds(1));
    return left == 0;
  }

  const std::string place;
  std::atomic<int> left{0};
};

ScriptOptions Talk() {
  ScriptOptions script = SayText(std::string(150, 'a'));
  script.max_model_len = 1 << 30;
  return script;
}

ServerOptions With(Faults& faults) {
  ServerOptions options{.drain_deadline = milliseconds(50)};
  options.http.header_timeout = milliseconds(200);
  options.http.fault = faults.Hook();
  return options;
}

void ExpectServes(const TestServer& under, const std::string& place) {
  EXPECT_EQ(under.Get("/health").status, 200) << place;
  EXPECT_EQ(under.Post(kPath, kBody).status, 200) << place;
  EXPECT_THAT(under.Post(kPath, kStream).body, HasSubstr("[DONE]")) << place;
}

// Timeouts and draining are the work of timers.
void ExpectTimersAlive(const TestServer& under, const std::string& place) {
  RawClient silent = under.Connect();
  EXPECT_TRUE(silent.ReadEof()) << place << ": the sweep closes who says nothing";
  RawClient endless = under.Connect();
  endless.Send(PostRequest(kPath, kEndless));
  EXPECT_THAT(endless.ReadUntil("\r\n\r\n"), HasSubstr("200 OK")) << place;
  under.server->RequestStop();
  EXPECT_THAT(endless.ReadUntil("[DONE]"), HasSubstr("shutting down")) << place;
  under.server->Wait();
}

void ExpectAFaultCostsOneClientAtMost(const char* place) {
  Faults faults(place);
  TestServer under(Talk(), With(faults));
  constexpr int kClients = 6;
  std::vector<RawClient> clients;
  for (int i = 0; i < kClients; ++i) {
    if (i == kClients / 2) faults.left = 1;
    clients.push_back(under.Connect());
    clients.back().Send(PostRequest(kPath, kStream, "connection: close\r\n"));
  }
  int failed = 0;
  for (RawClient& client : clients) {
    const std::string answer = client.ReadUntil("0\r\n\r\n");
    const bool whole = answer.find("\"finish_reason\":\"stop\"") != std::string::npos;
    EXPECT_TRUE(client.ReadEof()) << place << ": nobody is left waiting";
    failed += !whole;
  }
  EXPECT_TRUE(faults.WaitUsed()) << place;
  EXPECT_LE(failed, 1) << place;
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(20))) << place;
  ExpectServes(under, faults.place);
  faults.left = 1;  // again, with nobody or one client there
  under.Post(kPath, kBody);
  EXPECT_TRUE(faults.WaitUsed()) << place;
  ExpectServes(under, faults.place);
  ExpectTimersAlive(under, faults.place);
}

TEST(Resilience, AFaultAtAnyPlaceCostsOneClientAtMost) {
  std::vector<std::thread> threads;  // they wait most of the time
  for (const char* place : {"accept", "start", "sweep", "check", "tick", "read", "write", "respond",
                            "queue", "worker", "worker done", "prepared", "wake", "delta"}) {
    threads.emplace_back(ExpectAFaultCostsOneClientAtMost, place);
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Resilience, TheArmingItselfIsRepeated) {
  Faults faults("sweep");
  int left = 50;
  ServerOptions options = With(faults);
  options.http.fault = [&, hook = faults.Hook()](std::string_view at) {
    if (at == "arm" && left-- > 0) throw std::bad_alloc();
    hook(at);
  };
  TestServer under(Talk(), options);
  ExpectServes(under, "arm");
  faults.left = 1;
  EXPECT_TRUE(faults.WaitUsed());
  ExpectServes(under, "arm");
  ExpectTimersAlive(under, "arm");
}

TEST(Resilience, ASignalAfterAFailedOneIsHeard) {
  Faults faults("signal");
  ServerOptions options = With(faults);
  options.http.handle_signals = true;
  TestServer under(Talk(), options);
  ExpectServes(under, "signal");
  faults.left = 1;
  ::kill(::getpid(), SIGTERM);
  ASSERT_TRUE(faults.WaitUsed());
  ExpectServes(under, "signal");
  ::kill(::getpid(), SIGTERM);
  under.server->Wait();
}

// Whichever allocation of the I/O thread fails while it serves a stream and an answer.
TEST(Resilience, AnyAllocationMayFail) {
  std::atomic<bool> marked = false;
  ServerOptions options;
  options.http.fault = [&marked](std::string_view at) {
    if (at != "sweep") return;
    MarkThread();
    marked = true;
  };
  TestServer under(SayText("hello"), options);
  for (int i = 0; i < 20'000 && !marked; ++i) std::this_thread::sleep_for(milliseconds(1));
  int64_t skipped = 0;
  int quiet = 0;  // runs in which nothing failed, for they were over before
  while (quiet < 3 && skipped < 2000) {
    FailAllocation(skipped);
    for (const char* body : {R"({"prompt":"p","stream":true,"logprobs":2})", kBody}) {
      RawClient client = under.Connect();
      client.Send(PostRequest(kPath, body, "connection: close\r\n"));
      EXPECT_TRUE(client.ReadEof()) << skipped;
    }
    quiet = StopFailing() ? 0 : quiet + 1;
    ASSERT_EQ(under.Post(kPath, kBody).status, 200) << skipped;
    skipped += 1 + skipped / 50;
  }
  EXPECT_GT(skipped, 50);
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(20)));
  ExpectServes(under, "allocation");
}

}  // namespace
}  // namespace sixfold::gateway
