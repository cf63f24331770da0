// The wire: split, pipelined, wrong, slow and oversized requests, and clients that do not read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr const char* kCompletionsPath = "/v1/completions";
constexpr const char* kBody = R"({"prompt":"p","max_tokens":8})";

TEST(Connection, ARequestMayComeInSinglesBytes) {
  TestServer under(SayText("hello"));
  RawClient client = under.Connect();
  for (const char c : PostRequest(kCompletionsPath, kBody)) client.Send(std::string(1, c));
  EXPECT_EQ(client.ReadResponse().status, 200);
}

TEST(Connection, PipelinedRequestsAreAnsweredInOrder) {
  TestServer under(SayText("hello"));
  RawClient client = under.Connect();
  std::string all;
  for (int i = 0; i < 20; ++i) {
    all += GetRequest("/health", "x-request-id: g" + std::to_string(i) + "\r\n");
    all += PostRequest(kCompletionsPath, i % 2 ? kBody : R"({"prompt":"p","stream":true})",
                       "x-request-id: p" + std::to_string(i) + "\r\n");
  }
  client.Send(all);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client.ReadResponse().headers["x-request-id"], "g" + std::to_string(i));
    const RawResponse response = client.ReadResponse();
    EXPECT_EQ(response.headers.at("x-request-id"), "p" + std::to_string(i));
    EXPECT_THAT(response.body, HasSubstr("\"finish_reason\":\"stop\""));
  }
}

TEST(Connection, TenThousandPipelinedRequestsDoNotRecurse) {
  TestServer under(SayText("hello"));
  RawClient client = under.Connect();
  constexpr int kCount = 10'000;
  std::thread sender([&client] {
    std::string all;
    for (int i = 0; i < kCount; ++i) all += "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    client.Send(all);
  });
  int answered = 0;
  while (answered < kCount && client.ReadResponse().status == 200) ++answered;
  sender.join();
  EXPECT_EQ(answered, kCount);
}

TEST(Connection, KeepAliveAndClose) {
  TestServer under(SayText("hello"));
  RawClient client = under.Connect();
  for (int i = 0; i < 3; ++i) {
    client.Send(PostRequest(kCompletionsPath, kBody));
    const RawResponse response = client.ReadResponse();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.at("connection"), "keep-alive");
  }
  client.Send(PostRequest(kCompletionsPath, kBody, "connection: close\r\n"));
  EXPECT_EQ(client.ReadResponse().headers["connection"], "close");
  EXPECT_TRUE(client.ReadEof());
  RawClient old = under.Connect();
  old.Send(
      "POST /v1/completions HTTP/1.0\r\ncontent-length: "
      "28\r\n\r\n{\"prompt\":\"p\",\"stream\":true}");
  const std::string answer = old.ReadUntil("never");
  EXPECT_THAT(answer, HasSubstr("connection: close"));
  EXPECT_EQ(answer.find("transfer-encoding"), std::string::npos) << "HTTP/1.0 has no chunks";
  EXPECT_THAT(answer, HasSubstr("data: [DONE]\n\n"));
}

TEST(Connection, ChunkedBodiesAndExpectContinue) {
  TestServer under(SayText("hello"));
  RawClient client = under.Connect();
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
      "5;a=b\r\n{\"pro\r\n8\r\nmpt\":\"p\"\r\n1\r\n}\r\n0\r\ntrailer: t\r\n\r\n");
  EXPECT_EQ(client.ReadResponse().status, 200);
  client.Send(
      "POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: "
      "14\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("{\"prompt\":\"p\"}");
  EXPECT_EQ(client.ReadResponse().status, 200);
}

TEST(Connection, WhatIsNotHttpIsRefusedAndClosed) {
  TestServer under(SayText("hello"));
  const std::pair<std::string, int> cases[] = {
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(200, '\xaa') +
           "\r\n\r\n",
       400},
      {"GET / HTTP/3.0\r\n\r\n", 400},
      {"GET\r\n\r\n", 400},
      {"\rGET / HTTP/1.1\r\nhost: x\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n", 400},
      {"GET http://x/ HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nhost: x y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nhost: http://x\r\n\r\n", 400},
      {"GET / HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nhost: x\r\na: b\x01\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400},
      {"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1152921504606846976\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: "
       "chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
       400},
      {"GET / HTTP/1.1\r\nx: " + std::string(40'000, 'a') + "\r\n\r\n", 431},
      {"GET /" + std::string(40'000, 'a') + " HTTP/1.1\r\n\r\n", 431},
  };
  for (const auto& [bytes, status] : cases) {
    RawClient client = under.Connect();
    client.timeout = milliseconds(3000);
    client.Send(bytes);
    const RawResponse response = client.ReadResponse();
    EXPECT_EQ(response.status, status) << bytes.substr(0, 60);
    EXPECT_THAT(response.body, HasSubstr("{\"error\":{\"message\":")) << bytes.substr(0, 60);
    client.ShutdownSend();
    EXPECT_TRUE(client.ReadEof()) << bytes.substr(0, 60);
  }
  EXPECT_EQ(under.Get("/health").status, 200) << "and the server lives";
}

TEST(Connection, ProxiesAndOldClientsAreUnderstood) {
  TestServer under(SayText("hello"));
  const std::string tail = " HTTP/1.1\r\nhost: x\r\n\r\n";
  const std::pair<std::string, int> cases[] = {
      {"GET http://x/health" + tail, 200},
      {"GET HTTP://x:8000/health?a=/b" + tail, 200},
      {"GET https://user@x/v1/models" + tail, 200},
      {"GET http://x?a" + tail, 404},
      {"GET http://x/v1/models/m" + tail, 200},
      {"GET ftp://x/health" + tail, 404},
      {"GET /health/" + tail, 200},
      {"GET /v1/models/" + tail, 200},
      {"GET //v1///models" + tail, 200},
      {"GET /v1/models/m/" + tail, 200},
      {"GET /v1//models/m" + tail, 200},
      {"GET /v1/models/m/m" + tail, 404},
      {"POST /v1/chat/completions/" + tail, 400},
      {"GET /v1/chat/completions/" + tail, 405},
      {"\r\n\n\r\nGET /health" + tail, 200},
      {"GET /health HTTP/1.1\r\nHost:\r\n\r\n", 200},
      {"GET /health HTTP/1.1\r\nhost: [::1]:8000\r\n\r\n", 200},
      {"GET /health HTTP/1.0\r\n\r\n", 200},
  };
  for (const auto& [bytes, status] : cases) {
    RawClient client = under.Connect();
    client.Send(bytes);
    EXPECT_EQ(client.ReadResponse().status, status) << bytes.substr(0, 60);
  }
  // Behind a body, as old clients do, and in single bytes.
  RawClient client = under.Connect();
  for (int i = 0; i < 3; ++i) {
    for (const char c : PostRequest(kCompletionsPath, kBody) + "\r\n\r\n")
      client.Send(std::string(1, c));
    EXPECT_EQ(client.ReadResponse().status, 200);
  }
}

TEST(Connection, EmptyLinesDoNotHoldAConnectionOpen) {
  TestServer under(SayText("hello"), {.http = {.header_timeout = milliseconds(300)}});
  RawClient client = under.Connect();
  std::thread sender([&client] {
    for (int i = 0; i < 500 && client.Send("\r\n"); ++i)
      std::this_thread::sleep_for(milliseconds(20));
  });
  EXPECT_TRUE(client.ReadEof());
  sender.join();
}

TEST(Connection, DamagedRequestsNeverEndTheServer) {
  TestServer under(SayText("hello"));
  const std::string whole = PostRequest(kCompletionsPath, kBody) +
                            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: "
                            "chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
  for (uint32_t i = 0; i < 300; ++i) {
    std::string damaged = whole;
    const auto random = RandomBits({.seed = 5, .position = i});
    for (uint32_t k = 0; k <= random[0] % 4; ++k) {
      damaged[random[1 + k % 3] % damaged.size()] = static_cast<char>(random[k % 4] >> 8);
    }
    damaged.erase(random[2] % damaged.size(), random[3] % 8);
    RawClient client = under.Connect();
    client.Send(damaged);
    i % 2 ? client.Reset() : client.Close();
  }
  EXPECT_EQ(under.Get("/health").status, 200);
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(10)));
}

TEST(Connection, HeaderFlood) {
  TestServer under(SayText("hello"));
  RawClient client = under.Connect();
  client.Send("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 10'000; ++i) {
    if (!client.Send("x" + std::to_string(i) + ": y\r\n")) break;
  }
  EXPECT_EQ(client.ReadResponse().status, 431);
}

TEST(Connection, TenMegabyteBodies) {
  TestServer under(SayText("hello"), {.http = {.max_body_bytes = 10 << 20}});
  const auto padded = [](size_t bytes) {
    const std::string head = "{\"prompt\":\"p\",\"pad\":\"", tail = "\"}";
    return head + std::string(bytes - head.size() - tail.size(), 'x') + tail;
  };
  EXPECT_EQ(under.Post(kCompletionsPath, padded(10 << 20)).status, 200);
  RawResponse response = under.Post(kCompletionsPath, padded((10 << 20) + 1));
  EXPECT_EQ(response.status, 413);
  EXPECT_THAT(response.body, HasSubstr("10485760 bytes"));
  RawClient chunked = under.Connect();
  chunked.Send("POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
  for (int i = 0; i < 12; ++i) {
    if (!chunked.Send("100000\r\n" + std::string(1 << 20, 'x') + "\r\n")) break;
  }
  EXPECT_EQ(chunked.ReadResponse().status, 413);
  // What would be expensive to hold as a tree.
  const auto repeated = [](const std::string& part) {
    std::string body = "{\"prompt\":\"p\",\"pad\":[";
    while (body.size() < (10u << 20) - 20) body += part;
    return body + "0]}";
  };
  EXPECT_EQ(under.Post(kCompletionsPath, repeated("{},")).status, 400);
  EXPECT_EQ(under.Post(kCompletionsPath, repeated("1,")).status, 200);
}

TEST(Connection, BodiesHeldAtOnceAreBounded) {
  TestServer under(SayText("hello"), {.http = {.max_buffered_body_bytes = 1 << 20}});
  RawClient first = under.Connect(), second = under.Connect();
  first.Send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n" +
             std::string(700'000, 'x'));
  std::this_thread::sleep_for(milliseconds(100));
  second.Send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n" +
              std::string(700'000, 'x'));
  const RawResponse response = second.ReadResponse();
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.headers.at("retry-after"), "1");
  first.Close();
  second.Close();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(under.Post(kCompletionsPath, kBody).status, 200) << "what was held is given back";
}

TEST(Connection, SlowAndIdleClientsAreClosed) {
  HttpOptions http{.header_timeout = milliseconds(300),
                   .body_timeout = milliseconds(300),
                   .idle_timeout = milliseconds(300)};
  TestServer under(SayText("hello"), {.http = http});
  RawClient header = under.Connect(), body = under.Connect(), idle = under.Connect(),
            silent = under.Connect();
  header.Send("GET /health HT");
  body.Send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 20\r\n\r\n{");
  idle.Send(GetRequest("/health"));
  EXPECT_EQ(idle.ReadResponse().status, 200);
  for (RawClient* client : {&header, &body, &idle, &silent}) client->timeout = milliseconds(3000);
  EXPECT_EQ(header.ReadResponse().status, 408);
  EXPECT_EQ(body.ReadResponse().status, 408);
  EXPECT_TRUE(idle.ReadEof());
  EXPECT_TRUE(silent.ReadEof());
}

TEST(Connection, TooManyConnectionsAreTold) {
  TestServer under(SayText("hello"), {.http = {.max_connections = 2}});
  RawClient first = under.Connect(), second = under.Connect();
  first.Send(GetRequest("/health"));
  second.Send(GetRequest("/health"));
  EXPECT_EQ(first.ReadResponse().status, 200);
  EXPECT_EQ(second.ReadResponse().status, 200);
  EXPECT_EQ(under.Get("/health").status, 503);
  first.Close();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(under.Get("/health").status, 200);
}

// A client that reads late gets everything, in fewer and larger events; memory does not grow with
// what it has not read.
TEST(Connection, ALateReaderGetsTheWholeText) {
  std::string text;
  for (int i = 0; i < 30'000; ++i) text += static_cast<char>('a' + i % 26);
  ScriptOptions script = SayText(text);
  script.step_time = std::chrono::microseconds(0);  // a sleep may cost a busy machine milliseconds
  script.max_model_len = 100'000;
  TestServer under(script);
  RawClient client(under.server->port(), 4096);
  client.Send(PostRequest(kCompletionsPath, R"({"prompt":"p","max_tokens":40000,"stream":true})"));
  ASSERT_TRUE(under.backend.WaitSubmitted(1, std::chrono::seconds(10)));
  ASSERT_TRUE(under.backend.WaitIdle(std::chrono::seconds(60)));
  const std::string body = client.ReadResponse().body;
  std::string joined;
  size_t events = 0;
  for (size_t at = 0; (at = body.find("\"text\":\"", at)) != std::string::npos; ++events) {
    at += 8;
    joined += body.substr(at, body.find('"', at) - at);
  }
  EXPECT_EQ(joined, text);
  EXPECT_LT(events, text.size());
}

TEST(Connection, AClientThatDoesNotReadIsDroppedAndItsWorkAborted) {
  ScriptOptions script = SayText("abcdefghij");
  script.step_time = std::chrono::microseconds(1);
  script.max_model_len = 1 << 30;
  TestServer under(script, {.output_bytes_max = 64 << 10});
  RawClient client(under.server->port(), 4096);
  client.Send(PostRequest(
      kCompletionsPath,
      R"({"prompt":"p","max_tokens":100000000,"ignore_eos":true,"stream":true,"logprobs":20})"));
  ASSERT_TRUE(under.backend.WaitSubmitted(1, std::chrono::seconds(10)));
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(60)));
  EXPECT_EQ(under.backend.stats().aborted, 1u);
  const std::string metrics = under.Get("/metrics").body;
  EXPECT_NE(metrics.find("sixfold_slow_clients_dropped_total{model_name=\"m\"} 1\n"),
            std::string::npos);
}

TEST(Connection, AStalledWriteTimesOut) {
  ScriptOptions script = SayText("abcdefghij");
  script.step_time = std::chrono::microseconds(1);
  script.max_model_len = 1 << 30;
  TestServer under(
      script, {.http = {.write_timeout = milliseconds(300)}, .output_bytes_max = int64_t{1} << 40});
  RawClient client(under.server->port(), 4096);
  client.Send(
      PostRequest(kCompletionsPath,
                  R"({"prompt":"p","max_tokens":100000000,"ignore_eos":true,"stream":true})"));
  ASSERT_TRUE(under.backend.WaitSubmitted(1, std::chrono::seconds(10)));
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(60)));
  EXPECT_EQ(under.backend.stats().aborted, 1u);
}

}  // namespace
}  // namespace sixfold::gateway
