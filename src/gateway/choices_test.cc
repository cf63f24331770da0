// Several choices of one request, each with an end of its own: stop strings, stop tokens, clients that leave.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using Json = nlohmann::json;
using std::chrono::seconds;

constexpr const char* kPath = "/v1/completions";

// What each choice says, by the prompt's last byte and the choice's number; then "." without end.
ScriptOptions SayByChoice(std::map<std::pair<char, int>, std::string> texts) {
  ScriptOptions script = SayText("");
  script.script = [texts = std::move(texts)](const Request& request, int choice, uint64_t) {
    const auto found = texts.find({static_cast<char>(request.prompt.back()), choice});
    std::string text = found == texts.end() ? "" : found->second;
    text.resize(4000, '.');
    return std::vector<TokenId>(text.begin(), text.end());
  };
  return script;
}

struct Ended {
  std::string text, finish_reason;
  Json stop_reason;
  bool operator==(const Ended&) const = default;
};
void PrintTo(const Ended& e, std::ostream* out) { *out << '"' << e.text << "\" " << e.finish_reason << ' ' << e.stop_reason; }

// [choice]; of the answer in one piece, or of the stream's pieces put together.
std::vector<Ended> Ask(const TestServer& under, const std::string& fields, bool stream, size_t choices) {
  Json body = Json::parse(fields);
  body["stream"] = stream;
  const std::string answer = under.Post(kPath, body.dump()).body;
  SCOPED_TRACE(answer.substr(0, 300));
  std::vector<Ended> ended(choices);
  const auto take = [&](const Json& choice) {
    Ended& of = ended.at(choice["index"].get<size_t>());
    of.text += choice["text"].get<std::string>();
    if (choice["finish_reason"].is_null()) return;
    EXPECT_EQ(of.finish_reason, "") << "ends twice";
    of.finish_reason = choice["finish_reason"];
    of.stop_reason = choice.value("stop_reason", Json());
  };
  if (!stream) {
    const Json whole = Json::parse(answer);
    for (const Json& choice : whole["choices"]) take(choice);
    return ended;
  }
  for (size_t at = answer.find("data: {"); at != std::string::npos; at = answer.find("data: {", at + 1)) {
    const Json event = Json::parse(answer.substr(at + 6, answer.find('\n', at) - at - 6));
    for (const Json& choice : event["choices"]) take(choice);
  }
  return ended;
}

TEST(Choices, AStopStringEndsTheChoiceThatSaidIt) {
  const TestServer under(SayByChoice({{{'p', 0}, "aaaa"}, {{'p', 1}, "bb<end>b"}, {{'p', 2}, "ccccccc<end>"}}));
  const std::vector<Ended> want = {{"aaaa............", "length", nullptr}, {"bb", "stop", "<end>"}, {"ccccccc", "stop", "<end>"}};
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    EXPECT_EQ(Ask(under, R"({"prompt":"p","n":3,"max_tokens":16,"stop":"<end>"})", stream, 3), want);
    EXPECT_TRUE(under.backend.WaitIdle(seconds(5))) << "what has stopped is not computed further";
  }
}

TEST(Choices, AStopTokenEndsTheChoiceThatDrewIt) {
  const TestServer under(SayByChoice({{{'p', 0}, "aaaa"}, {{'p', 1}, "bb#b"}, {{'p', 2}, "#"}}));
  const std::vector<Ended> want = {{"aaaa....", "length", nullptr}, {"bb", "stop", '#'}, {"", "stop", '#'}};
  for (const bool stream : {false, true}) {
    EXPECT_EQ(Ask(under, R"({"prompt":"p","n":3,"max_tokens":8,"stop_token_ids":[35]})", stream, 3), want);
  }
}

TEST(Choices, OfSeveralPromptsEachHasItsOwn) {
  const TestServer under(SayByChoice({{{'p', 0}, "aaaa"}, {{'p', 1}, "b|"}, {{'q', 0}, "cc|"}, {{'q', 1}, "dddddd"}}));
  const std::vector<Ended> want = {
      {"aaaa..", "length", nullptr}, {"b", "stop", "|"}, {"cc", "stop", "|"}, {"dddddd", "length", nullptr}};
  for (const bool stream : {false, true}) {
    EXPECT_EQ(Ask(under, R"({"prompt":["p","q"],"n":2,"max_tokens":6,"stop":"|"})", stream, 4), want);
  }
}

TEST(Choices, TheSameStopStringAtOtherLengthsCountsEachChoicesTokens) {
  const TestServer under(SayByChoice({{{'p', 0}, "a|"}, {{'p', 1}, "bbb|"}}));
  const std::string answer = under.Post(kPath, R"({"prompt":"p","n":2,"max_tokens":9,"stop":"|","logprobs":0})").body;
  const Json parsed = Json::parse(answer);
  EXPECT_EQ(parsed["usage"]["completion_tokens"], 2 + 4);
  EXPECT_EQ(parsed["choices"][0]["logprobs"]["tokens"].size(), 1u);
  EXPECT_EQ(parsed["choices"][1]["logprobs"]["tokens"].size(), 3u);
}

// Waits until so many choices run.
bool WaitRunning(const TestServer& under, int running) {
  for (int i = 0; i < 2000 && under.backend.stats().running != running; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return under.backend.stats().running == running;
}

// The choice that is named ends at once by a stop token, the other runs on: its client leaves.
TEST(Choices, AClientThatLeavesEndsThoseThatStillRun) {
  for (const int first_to_end : {0, 1}) {
    for (const bool stream : {false, true}) {
      for (const bool two_prompts : {false, true}) {
        SCOPED_TRACE(testing::Message() << "choice " << first_to_end << " ends, stream " << stream << ", two prompts " << two_prompts);
        const auto ends = two_prompts ? std::pair(first_to_end == 0 ? 'p' : 'q', 0) : std::pair('p', first_to_end);
        ScriptOptions script = SayByChoice({{ends, "#"}});
        script.max_model_len = 1 << 30;
        const TestServer under(std::move(script));
        Json body = {{"prompt", "p"}, {"n", 2}, {"max_tokens", 1000000}, {"ignore_eos", true}, {"stop_token_ids", {'#'}}, {"stream", stream}};
        if (two_prompts) {
          body["prompt"] = {"p", "q"};
          body["n"] = 1;
        }
        RawClient client = under.Connect();
        client.Send(PostRequest(kPath, body.dump()));
        ASSERT_TRUE(under.backend.WaitSubmitted(two_prompts ? 2 : 1, seconds(5)));
        if (stream) client.ReadUntil("\"finish_reason\":\"stop\"");
        ASSERT_TRUE(WaitRunning(under, 1));
        client.Close();
        EXPECT_TRUE(under.backend.WaitIdle(seconds(10))) << "the other choice is still computed";
      }
    }
  }
}

}  // namespace
}  // namespace sixfold::gateway
