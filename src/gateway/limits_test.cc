// What one client can make the server hold, measured in bytes of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "gateway/testing/allocations.h"
#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr const char* kPath = "/v1/completions";
constexpr const char* kBody = R"({"prompt":"p","max_tokens":8})";

ScriptOptions Chatter() {
  ScriptOptions script = SayText("abcdefghij");
  script.step_time = std::chrono::microseconds(0);
  script.max_model_len = 1 << 20;
  return script;
}

Json Endless(int n, int max_tokens) {
  return {{"prompt", "p"},
          {"n", n},
          {"max_tokens", max_tokens},
          {"ignore_eos", true},
          {"logprobs", 20}};
}

std::string CodeOf(const RawResponse& response) {
  return Json::parse(response.body)["error"]["code"];
}

TEST(Limits, AnAnswerThatIsNotStreamedIsBounded) {
  TestServer under(Chatter(), {.output_bytes_max = 8 << 20, .answer_bytes_max = 2 << 20});
  ResetPeak();
  const int64_t before = LiveBytes();
  Json body = Endless(64, 2000);  // 230 MB
  body["stop"] = "zzz";
  const RawResponse response = under.Post(kPath, body.dump());
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(CodeOf(response), "answer_too_large");
  EXPECT_LT(PeakBytes() - before, 16 << 20);
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(20))) << "what remains is aborted";
  EXPECT_EQ(under.backend.stats().aborted, 64u);
  // Streamed, the same is no trouble.
  body = Endless(4, 500);
  body["stream"] = true;
  const RawResponse streamed = under.Post(kPath, body.dump());
  EXPECT_GT(streamed.body.size(), 400'000u);
  EXPECT_THAT(streamed.body.substr(streamed.body.size() - 20), HasSubstr("[DONE]"));
}

TEST(Limits, WhatIsCertainlyTooLargeIsNotBegun) {
  TestServer under(Chatter(), {.answer_bytes_max = 2 << 20});
  EXPECT_EQ(CodeOf(under.Post(kPath, Endless(64, 2000).dump())), "answer_too_large");
  Json body = Endless(64, 2000);
  body["ignore_eos"] = false;
  body["min_tokens"] = 2000;
  EXPECT_EQ(CodeOf(under.Post(kPath, body.dump())), "answer_too_large");
  EXPECT_EQ(under.backend.submitted(), 0u);
  EXPECT_EQ(under.Post(kPath, Endless(4, 200).dump()).status, 200);
}

TEST(Limits, AllAnswersTogetherAreBounded) {
  TestServer under(Chatter(), {.held_answer_bytes_max = 40 << 20});
  const std::string body = Endless(1, 20'000).dump();  // 8 MB of JSON, up to 31 MB while it grows
  const auto status = [&] { return under.Post(kPath, body).status; };
  EXPECT_EQ(status(), 200);
  // One that is finished and not read counts until its client reads it or leaves.
  std::vector<RawClient> idle;
  for (uint64_t i = 0; i < 3; ++i) {
    idle.emplace_back(under.server->port(), 4096);
    idle.back().Send(PostRequest(kPath, body));
    ASSERT_TRUE(under.backend.WaitSubmitted(i + 2, std::chrono::seconds(20)));
    ASSERT_TRUE(under.backend.WaitIdle(std::chrono::seconds(20)));
  }
  EXPECT_EQ(status(), 429);
  EXPECT_EQ(under.Post(kPath, kBody).status, 200) << "ordinary answers go on";
  for (RawClient& client : idle) client.Reset();
  int after = 0;
  for (int i = 0; i < 500 && (after = status()) != 200; ++i)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(after, 200) << "what was held is given back";
}

TEST(Limits, AStreamOfTokensWithoutTextIsBounded) {
  ScriptOptions script = Chatter();
  script.script = [](const Request&, int, uint64_t) { return std::vector<TokenId>(10, kByteTurn); };
  TestServer under(script, {.output_bytes_max = 256 << 10});
  ResetPeak();
  const int64_t before = LiveBytes();
  Json body = Endless(8, 20'000);
  body["stream"] = true;
  EXPECT_THAT(under.Post(kPath, body.dump()).body, HasSubstr("answer_too_large"));
  EXPECT_LT(PeakBytes() - before, 16 << 20);
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(20)));
}

TEST(Limits, WhatARequestHoldsInTheBackendIsCounted) {
  TestServer under(Chatter(), {.http = {.max_buffered_body_bytes = 1 << 20}});
  Json bias = Json::object();
  for (int id = 0; id < kByteVocab; ++id) bias[std::to_string(id)] = 1;
  Json body{{"prompt", Json::array()}, {"max_tokens", 1}, {"logit_bias", bias}};
  for (int i = 0; i < 200; ++i) body["prompt"].push_back("p");
  EXPECT_EQ(under.Post(kPath, body.dump()).status, 429) << "200 copies of the bias";
  body["prompt"] = "p";
  EXPECT_EQ(under.Post(kPath, body.dump()).status, 200);
}

// Encoding waits at a gate.
class GatedCodec final : public TextCodec {
 public:
  Result<std::vector<TokenId>> Encode(std::string_view text, SpecialTokens special) const override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [this] { return open_; });
    return codec_.Encode(text, special);
  }
  Result<std::string> RenderChat(const std::string& messages, const std::string& kwargs,
                                 bool prompt) const override {
    return codec_.RenderChat(messages, kwargs, prompt);
  }
  std::string TokenBytes(TokenId token) const override { return codec_.TokenBytes(token); }
  bool IsSpecial(TokenId token) const override { return codec_.IsSpecial(token); }
  std::unique_ptr<TextDecoder> NewDecoder(const DecoderOptions& options) const override {
    return codec_.NewDecoder(options);
  }
  void WaitForOne() const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [this] { return waiting_ > 0; });
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  const ByteCodec codec_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int waiting_ = 0;
  bool open_ = false;
};

// Clients that come and leave while the workers are busy.
TEST(Limits, BodiesOfClientsThatLeftAreFreedAndTheirQueueIsBounded) {
  ScriptedBackend backend(Chatter());
  GatedCodec codec;
  ServerOptions options{.http = {.port = 0, .workers = 1, .max_connections = 64},
                        .served_model_names = {"m"}};
  auto server = Server::Start(options, backend, codec);
  ASSERT_TRUE(server.ok());
  RawClient first((*server)->port());
  first.Send(PostRequest(kPath, kBody));
  codec.WaitForOne();
  const int64_t before = LiveBytes();
  const std::string large =
      R"({"prompt":"p","max_tokens":8,"pad":")" + std::string(1 << 20, 'x') + "\"}";
  int refused = 0;
  for (int i = 0; i < 80; ++i) {
    RawClient client((*server)->port());
    const std::string request = PostRequest(kPath, large);
    client.Send(request);
    client.ShutdownSend();  // it counts as gone
    client.timeout = milliseconds(20'000);
    const RawResponse response = client.ReadResponse();
    refused += response.status == 429;
  }
  EXPECT_LT(LiveBytes() - before, 8 << 20) << "of 80 MB";
  EXPECT_GE(refused, 15) << "64 may wait";
  codec.Open();
  EXPECT_EQ(first.ReadResponse().status, 200);
  RawClient last((*server)->port());
  last.Send(PostRequest(kPath, kBody));
  EXPECT_EQ(last.ReadResponse().status, 200) << "the queue is empty again";
}

}  // namespace
}  // namespace sixfold::gateway
