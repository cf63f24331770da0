// What an answer says, over the real server and a scripted backend.
#include "gateway/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kCompletionsPath = "/v1/completions";

Json ChatBody() { return {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}}; }

// The JSON of each event; the last must be [DONE].
std::vector<Json> Events(const std::string& body) {
  std::vector<Json> events;
  std::istringstream in(body);
  std::string line;
  bool done = false;
  while (std::getline(in, line)) {
    if (line.empty()) continue;
    EXPECT_FALSE(done) << "after [DONE]: " << line;
    EXPECT_EQ(line.substr(0, 6), "data: ");
    done = line == "data: [DONE]";
    if (!done) events.push_back(Json::parse(line.substr(6)));
  }
  EXPECT_TRUE(done);
  return events;
}

struct Streamed {
  std::string text, role;
  std::vector<std::string> finish_reasons;
  Json stop_reason, usage;
  int chunks = 0;
};

// Joins choice `index` of a stream and checks the contract that holds for all of them.
Streamed Join(const std::vector<Json>& events, int index = 0) {
  Streamed joined;
  for (const Json& event : events) {
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_EQ(event["created"], events[0]["created"]);
    if (event["choices"].empty()) joined.usage = event["usage"];
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      EXPECT_TRUE(joined.finish_reasons.empty()) << "news after the finish";
      ++joined.chunks;
      if (choice.contains("delta")) {
        if (choice["delta"].contains("role"))
          joined.role += choice["delta"]["role"].get<std::string>();
        joined.text += choice["delta"].value("content", "");
      } else {
        joined.text += choice["text"].get<std::string>();
      }
      if (!choice["finish_reason"].is_null()) {
        joined.finish_reasons.push_back(choice["finish_reason"]);
        joined.stop_reason = choice["stop_reason"];
      }
    }
  }
  return joined;
}

TEST(Server, ChatAnswersWithEveryMember) {
  TestServer under(SayText("héllo 🙂"));
  const RawResponse response = under.Post(kChatPath, ChatBody().dump(), "x-request-id: my-id\r\n");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("x-request-id"), "my-id");
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const Json answer = Json::parse(response.body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "m");
  EXPECT_EQ(answer["system_fingerprint"], "fp_scripted");
  EXPECT_THAT(answer["id"].get<std::string>(), HasSubstr("chatcmpl-"));
  const Json choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "héllo 🙂");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null()) << "end of sequence";
  EXPECT_TRUE(choice["logprobs"].is_null());
  const std::string prompt = "[user]hi\n[assistant]";
  EXPECT_EQ(answer["usage"]["prompt_tokens"], prompt.size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], std::string("héllo 🙂").size() + 1)
      << "with the end token";
  EXPECT_EQ(answer["usage"]["total_tokens"], prompt.size() + std::string("héllo 🙂").size() + 1);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(under.backend.last_prompt().size(), prompt.size());
}

TEST(Server, AStreamIsTheAnswerInPieces) {
  TestServer under(SayText("naïve 日本 🙂🙃!"));
  Json body = ChatBody();
  body["stream"] = true;
  const RawResponse response = under.Post(kChatPath, body.dump());
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(response.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(response.headers.at("x-accel-buffering"), "no");
  const auto events = Events(response.body);
  // Every piece is whole characters: nlohmann refuses anything else. A chunk a character, and the
  // end.
  const Streamed joined = Join(events);
  EXPECT_EQ(joined.text, "naïve 日本 🙂🙃!");
  EXPECT_EQ(joined.role, "assistant") << "once";
  EXPECT_EQ(joined.finish_reasons, std::vector<std::string>{"stop"});
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["content"], "n")
      << "the role comes with the first token";
  for (const Json& event : events) EXPECT_FALSE(event.contains("usage")) << "only when asked";
}

TEST(Server, UsageComesLastWhenAsked) {
  TestServer under(SayText("abc"));
  Json body = ChatBody();
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  auto events = Events(under.Post(kChatPath, body.dump()).body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 4);
  for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_TRUE(events[i].at("usage").is_null());
  body["stream_options"]["continuous_usage_stats"] = true;
  events = Events(under.Post(kChatPath, body.dump()).body);
  EXPECT_EQ(events[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(events[1]["usage"]["completion_tokens"], 2);
}

TEST(Server, StopStringsEndTheChoiceAndItsComputation) {
  ScriptOptions script = SayText("one two three four");
  TestServer under(script);
  for (const bool stream : {false, true}) {
    Json body = ChatBody();
    body["stop"] = {"zzz", "thr"};
    body["stream"] = stream;
    body["ignore_eos"] = true;  // it would go on for ever
    const std::string text = under.Post(kChatPath, body.dump()).body;
    if (stream) {
      const Streamed joined = Join(Events(text));
      EXPECT_EQ(joined.text, "one two ");
      EXPECT_EQ(joined.finish_reasons, std::vector<std::string>{"stop"});
      EXPECT_EQ(joined.stop_reason, "thr");
    } else {
      const Json choice = Json::parse(text)["choices"][0];
      EXPECT_EQ(choice["message"]["content"], "one two ");
      EXPECT_EQ(choice["stop_reason"], "thr");
      EXPECT_EQ(Json::parse(text)["usage"]["completion_tokens"], 11);
    }
    EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(5)));
  }
  EXPECT_EQ(under.backend.stats().aborted, 2u);
}

TEST(Server, StopStringsWaitForMinTokensAndMayStay) {
  TestServer under(SayText("ab ab ab"));
  Json body = ChatBody();
  body["stop"] = "ab";
  body["min_tokens"] = 4;
  EXPECT_EQ(
      Json::parse(under.Post(kChatPath, body.dump()).body)["choices"][0]["message"]["content"],
      "ab ");
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(
      Json::parse(under.Post(kChatPath, body.dump()).body)["choices"][0]["message"]["content"],
      "ab ab");
}

TEST(Server, StopTokensAreNamedAndNoPartOfTheText) {
  TestServer under(SayText("hello"));
  Json body = ChatBody();
  body["stop_token_ids"] = {static_cast<int>('l')};
  const Json answer = Json::parse(under.Post(kChatPath, body.dump()).body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "he");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["stop_reason"], static_cast<int>('l'));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
}

TEST(Server, TextThatEndsInsideACharacterIsRepaired) {
  TestServer under(SayText("ab🙂"));
  Json body = ChatBody();
  body["max_tokens"] = 4;  // two of the emoji's four bytes
  for (const bool stream : {false, true}) {
    body["stream"] = stream;
    const std::string text = under.Post(kChatPath, body.dump()).body;
    const std::string content =
        stream ? Join(Events(text)).text
               : Json::parse(text)["choices"][0]["message"]["content"].get<std::string>();
    EXPECT_THAT(content, HasSubstr("ab\xef\xbf\xbd"));
  }
}

TEST(Server, SeveralChoicesAndPrompts) {
  ScriptOptions script = SayText("");
  script.script = [](const Request& request, int choice, uint64_t) {
    return std::vector<TokenId>{request.prompt.back(), '0' + choice};
  };
  TestServer under(script);
  const Json body = {{"prompt", {"a", "b"}}, {"n", 2}};
  const Json answer = Json::parse(under.Post(kCompletionsPath, body.dump()).body);
  EXPECT_EQ(answer["object"], "text_completion");
  std::vector<std::string> texts;
  for (const Json& choice : answer["choices"]) texts.push_back(choice["text"]);
  EXPECT_EQ(texts, (std::vector<std::string>{"a0", "a1", "b0", "b1"}));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4) << "two prompts with BOS";
  Json streaming = body;
  streaming["stream"] = true;
  const auto events = Events(under.Post(kCompletionsPath, streaming.dump()).body);
  for (int i = 0; i < 4; ++i) {
    const Streamed joined = Join(events, i);
    EXPECT_EQ(joined.text, texts[static_cast<size_t>(i)]);
    EXPECT_EQ(joined.finish_reasons.size(), 1u);
  }
}

TEST(Server, PromptsAsTokenIds) {
  TestServer under(SayText("x"));
  EXPECT_EQ(under.Post(kCompletionsPath, R"({"prompt":[1,2,259]})").status, 200);
  EXPECT_EQ(under.backend.last_prompt(), (std::vector<TokenId>{1, 2, 259}));
  EXPECT_EQ(Json::parse(under.Post(kCompletionsPath, R"({"prompt":[[65],[66,67]]})")
                            .body)["usage"]["prompt_tokens"],
            3);
  const Json error = Json::parse(under.Post(kCompletionsPath, R"({"prompt":[260]})").body)["error"];
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(Json::parse(under.Post(kCompletionsPath, R"({"prompt":[[]]})").body)["error"]["param"],
            "prompt");
  EXPECT_EQ(under.Post(kCompletionsPath, R"({"prompt":""})").status, 200) << "BOS alone";
  EXPECT_EQ(under.Post(kCompletionsPath, R"({"prompt":"","add_special_tokens":false})").status,
            400);
}

TEST(Server, LogprobsInBothShapes) {
  TestServer under(SayText("é<stop>"));
  Json body = ChatBody();
  body["logprobs"] = true;
  body["top_logprobs"] = 2;
  body["stop"] = "<stop>";
  for (const bool stream : {false, true}) {
    body["stream"] = stream;
    const std::string text = under.Post(kChatPath, body.dump()).body;
    Json content = Json::array();
    if (stream) {
      for (const Json& event : Events(text)) {
        for (const Json& entry : event["choices"][0]["logprobs"]["content"])
          content.push_back(entry);
      }
    } else {
      content = Json::parse(text)["choices"][0]["logprobs"]["content"];
    }
    ASSERT_EQ(content.size(), 2u) << "the tokens of the stop string are no part of the answer: "
                                  << content;
    EXPECT_EQ(content[0]["bytes"], Json({0xc3}));
    EXPECT_EQ(content[1]["bytes"], Json({0xa9}));
    EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
    EXPECT_FLOAT_EQ(content[0]["logprob"], -0.25f);
  }
  const Json body2 = {{"prompt", "日x"}, {"logprobs", 1}, {"max_tokens", 3}};
  const Json logprobs =
      Json::parse(under.Post(kCompletionsPath, body2.dump()).body)["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"][2], "<");
  EXPECT_EQ(logprobs["text_offset"], Json({2, 3, 3})) << "in characters from the prompt's start";
  EXPECT_EQ(logprobs["token_logprobs"].size(), 3u);
  EXPECT_EQ(logprobs["top_logprobs"][2], Json({{"<", -0.25}}));
}

TEST(Server, ContextOverflowSaysTheNumbers) {
  ScriptOptions script = SayText("abc");
  script.max_model_len = 100;
  TestServer under(script);
  Json body = ChatBody();
  body["max_tokens"] = 90;
  RawResponse response = under.Post(kChatPath, body.dump());
  EXPECT_EQ(response.status, 400);
  Json error = Json::parse(response.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "messages");
  EXPECT_EQ(error["message"],
            "This model's maximum context length is 100 tokens. However, you requested 110 tokens "
            "(20 in the messages, "
            "90 in the completion). Please reduce the length of the messages or completion.");
  body["max_tokens"] = 80;
  EXPECT_EQ(under.Post(kChatPath, body.dump()).status, 200) << "just fits";
  body.erase("max_tokens");
  body["messages"][0]["content"] = std::string(200, 'x');
  error = Json::parse(under.Post(kChatPath, body.dump()).body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("resulted in 218 tokens"));
  // 9 MB of text: refused before it is tokenised.
  body["messages"][0]["content"] = std::string(9 << 20, 'x');
  response = under.Post(kChatPath, body.dump());
  EXPECT_EQ(Json::parse(response.body)["error"]["code"], "context_length_exceeded");
  body["messages"][0]["content"] = "hi";
  body["max_tokens"] = 9223372036854775807;
  EXPECT_EQ(Json::parse(under.Post(kChatPath, body.dump()).body)["error"]["code"],
            "context_length_exceeded");
}

TEST(Server, ModelsAndUnknownOnes) {
  ServerOptions options{.served_model_names = {"org/name", "alias"}, .root = "/models/x.gguf"};
  TestServer under(SayText("a"), options);
  const Json list = Json::parse(under.Get("/v1/models").body);
  EXPECT_EQ(list["data"][0]["id"], "org/name");
  EXPECT_EQ(list["data"][0]["root"], "/models/x.gguf");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(under.Get("/models").body, under.Get("/v1/models").body);
  EXPECT_EQ(Json::parse(under.Get("/v1/models/org/name").body)["id"], "org/name");
  EXPECT_EQ(Json::parse(under.Get("/v1/models/org%2Fname").body)["id"], "org/name");
  EXPECT_EQ(under.Get("/v1/models/nope").status, 404);
  Json body = ChatBody();
  body["model"] = "nope";
  const RawResponse response = under.Post(kChatPath, body.dump());
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(Json::parse(response.body)["error"]["code"], "model_not_found");
  body["model"] = "alias";
  EXPECT_EQ(under.Post(kChatPath, body.dump()).status, 200);
  body["model"] = nullptr;
  EXPECT_EQ(under.Post(kChatPath, body.dump()).status, 200);
}

// The hash of a large model takes longer than its loading: answers do not wait for it, /version
// does.
TEST(Server, OnlyVersionWaitsForTheFingerprint) {
  std::atomic<bool> known = false;
  ScriptOptions script = SayText("a");
  script.fingerprint = [&]() -> std::optional<Result<std::string>> {
    if (!known) return std::nullopt;
    return std::string("fp_late");
  };
  TestServer under(std::move(script), {.version = "1.2"});
  RawClient waiting = under.Connect();
  waiting.Send("GET /version HTTP/1.1\r\nhost: x\r\n\r\n");
  RawClient gone = under.Connect();
  gone.Send("GET /version HTTP/1.1\r\nhost: x\r\n\r\n");
  EXPECT_TRUE(
      Json::parse(under.Post(kChatPath, ChatBody().dump()).body)["system_fingerprint"].is_null());
  EXPECT_EQ(under.Get("/health").status, 200);
  known = true;
  EXPECT_EQ(Json::parse(waiting.ReadResponse().body)["fingerprint"], "fp_late");
  EXPECT_TRUE(under.backend.hurried());
  EXPECT_EQ(Json::parse(under.Post(kChatPath, ChatBody().dump()).body)["system_fingerprint"],
            "fp_late");
}

TEST(Server, AFingerprintThatCannotBeKnownIsAnError) {
  ScriptOptions script = SayText("a");
  script.fingerprint = []() -> std::optional<Result<std::string>> {
    return InvalidFile("m.gguf: was written to");
  };
  TestServer under(std::move(script));
  const Json version = Json::parse(under.Get("/version").body);
  EXPECT_TRUE(version["fingerprint"].is_null());
  EXPECT_EQ(version["fingerprint_error"], "m.gguf: was written to");
  EXPECT_TRUE(
      Json::parse(under.Post(kChatPath, ChatBody().dump()).body)["system_fingerprint"].is_null());
}

TEST(Server, MetricsAskForTheKeyOnlyWhenProtected) {
  using Access = ServerOptions::MetricsAccess;
  for (const Access access : {Access::kOpen, Access::kWithKey}) {
    TestServer under(SayText("a"), {.api_key = "k", .metrics_access = access});
    const int without_key = access == Access::kOpen ? 200 : 401;
    EXPECT_EQ(under.Get("/metrics").status, without_key);
    EXPECT_EQ(under.Get("/metrics/").status, without_key);
    EXPECT_EQ(under.Get("/metrics", "authorization: Bearer k\r\n").status, 200);
    EXPECT_EQ(under.Get("/health").status, 200);
    EXPECT_EQ(under.Get("/version").status, 401);
    EXPECT_EQ(under.Get("/v1/models").status, 401);
  }
}

TEST(Server, RoutesMethodsAndCors) {
  TestServer under(SayText("a"), {.version = "1.2"});
  EXPECT_EQ(under.Get("/nothing").status, 404);
  EXPECT_EQ(Json::parse(under.Get("/nothing").body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(under.Get(kChatPath).status, 405);
  EXPECT_THAT(under.Get(kChatPath).headers.at("allow"), HasSubstr("POST"));
  EXPECT_EQ(under.Post("/health", "").status, 405);
  EXPECT_EQ(under.Get("/health?x=1").status, 200);
  EXPECT_EQ(Json::parse(under.Get("/version").body)["version"], "1.2");
  EXPECT_EQ(Json::parse(under.Get("/version").body)["fingerprint"], "fp_scripted");
  EXPECT_THAT(under.Get("/metrics").body, HasSubstr("vllm:num_requests_running"));
  EXPECT_EQ(under.Get("/v1/models").headers.at("access-control-allow-origin"), "*");
  RawClient client = under.Connect();
  client.Send("OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\norigin: http://a\r\n\r\n");
  const RawResponse preflight = client.ReadResponse();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_THAT(preflight.headers.at("access-control-allow-methods"), HasSubstr("POST"));
  client.Send("HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n");
  const std::string head = client.ReadUntil("\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("200 OK"));
  client.Send(GetRequest("/health"));
  EXPECT_EQ(client.ReadResponse().status, 200) << "a HEAD has no body";
}

TEST(Server, ApiKey) {
  TestServer under(SayText("a"), {.api_key = "sk-1"});
  EXPECT_EQ(under.Get("/health").status, 200);
  for (const char* headers : {"", "authorization: Bearer sk-2\r\n", "authorization: sk-1\r\n",
                              "authorization: Bearer sk-11\r\n", "authorization: Bearer \r\n"}) {
    const RawResponse response = under.Post(kChatPath, ChatBody().dump(), headers);
    EXPECT_EQ(response.status, 401) << headers;
    EXPECT_EQ(Json::parse(response.body)["error"]["code"], "invalid_api_key");
  }
  EXPECT_EQ(under.Get("/v1/models").status, 401);
  EXPECT_EQ(under.Post(kChatPath, ChatBody().dump(), "Authorization: Bearer sk-1\r\n").status, 200);
  EXPECT_EQ(under.Post(kChatPath, ChatBody().dump(), "authorization: bearer sk-1\r\n").status, 200);
}

TEST(Server, OverloadIs429BeforeAnyByte) {
  ScriptOptions script = SayText("abc");
  script.max_queued = 0;
  TestServer under(script);
  for (const bool stream : {false, true}) {
    Json body = ChatBody();
    body["stream"] = stream;
    const RawResponse response = under.Post(kChatPath, body.dump());
    EXPECT_EQ(response.status, 429);
    EXPECT_EQ(response.headers.at("retry-after"), "1");
    EXPECT_EQ(Json::parse(response.body)["error"]["code"], "overloaded");
  }
}

TEST(Server, OverloadOfALaterPromptAbortsTheEarlierOnes) {
  ScriptOptions script = SayText(std::string(3000, 'a'));
  script.max_queued = 2;
  script.max_running = 0;
  TestServer under(script);
  EXPECT_EQ(under.Post(kCompletionsPath, R"({"prompt":["a","b","c"]})").status, 429);
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(5)));
  EXPECT_EQ(under.backend.stats().aborted, 2u);
}

TEST(Server, ErrorsAfterTheHeadComeInTheStream) {
  ScriptOptions script = SayText("abcdef");
  script.fault = [](const Request&, int, int64_t position) {
    return position == 3 ? Internal("lost a rank") : OkStatus();
  };
  TestServer under(script);
  Json body = ChatBody();
  RawResponse response = under.Post(kChatPath, body.dump());
  EXPECT_EQ(response.status, 500);
  EXPECT_THAT(response.body, HasSubstr("lost a rank"));
  body["stream"] = true;
  body["n"] = 3;
  response = under.Post(kChatPath, body.dump());
  EXPECT_EQ(response.status, 200);
  const auto events = Events(response.body);
  EXPECT_EQ(events.back()["error"]["message"], "lost a rank");
  EXPECT_EQ(events.back()["error"]["type"], "internal_server_error");
  EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(5))) << "the other choices were aborted";
}

TEST(Server, WhatTheTemplateRefusesIs400) {
  TestServer under(SayText("a"));
  Json body = ChatBody();
  body["messages"][0]["content"] = "raise";
  const RawResponse response = under.Post(kChatPath, body.dump());
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Json::parse(response.body)["error"]["param"], "messages");
  EXPECT_THAT(response.body, HasSubstr("the template refuses"));
  body["messages"][0]["content"] = "a";
  body["chat_template_kwargs"] = {{"suffix", "S"}};
  body["add_generation_prompt"] = false;
  EXPECT_EQ(under.Post(kChatPath, body.dump()).status, 200);
  EXPECT_EQ(under.backend.last_prompt().back(), 'S');
}

TEST(Server, DrainFinishesWhatRunsAndRefusesNewWork) {
  ScriptOptions script = SayText(std::string(300, 'a'));
  script.step_time = std::chrono::milliseconds(1);
  TestServer under(script);
  RawClient streaming = under.Connect();
  Json body = ChatBody();
  body["stream"] = true;
  streaming.Send(PostRequest(kChatPath, body.dump()));
  streaming.ReadUntil("data: ");
  RawClient idle = under.Connect();
  under.server->RequestStop();
  const RawResponse health = under.Get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.headers.at("retry-after"), "5");
  const RawResponse refused = under.Post(kChatPath, ChatBody().dump());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_THAT(streaming.ReadUntil("data: [DONE]\n\n"), HasSubstr("\"finish_reason\":\"stop\""));
  under.server->Wait();
  EXPECT_TRUE(idle.ReadEof());
  EXPECT_EQ(RawClient(under.server->port()).Send("x"), false) << "nobody listens any more";
}

TEST(Server, DrainDeadlineAndSecondSignalAbort) {
  for (const bool second_signal : {false, true}) {
    ScriptOptions script = SayText("abc");
    ServerOptions options{.drain_deadline = second_signal ? std::chrono::seconds(60)
                                                          : std::chrono::milliseconds(100)};
    TestServer under(script, options);
    RawClient streaming = under.Connect(), waiting = under.Connect();
    Json body = ChatBody();
    body["ignore_eos"] = true;
    body["max_tokens"] = 4000;
    waiting.Send(PostRequest(kChatPath, body.dump()));
    body["stream"] = true;
    streaming.Send(PostRequest(kChatPath, body.dump()));
    streaming.ReadUntil("data: ");
    under.server->RequestStop();
    if (second_signal) under.server->RequestStop();
    EXPECT_THAT(streaming.ReadUntil("[DONE]\n\n"), HasSubstr("shutting down"));
    EXPECT_EQ(waiting.ReadResponse().status, 503);
    under.server->Wait();
    EXPECT_TRUE(under.backend.WaitIdle(std::chrono::seconds(5)));
  }
}

TEST(Server, APortInUseSaysWhatToType) {
  TestServer first(SayText("a"));
  ServerOptions options{.served_model_names = {"m"}};
  options.http.port = first.server->port();
  const auto second = Server::Start(options, first.backend, first.codec);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("--port"));
  options.http.host = "no such host";
  EXPECT_FALSE(Server::Start(options, first.backend, first.codec).ok());
}

}  // namespace
}  // namespace sixfold::gateway
