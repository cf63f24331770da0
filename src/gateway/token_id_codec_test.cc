// What a server without a tokenizer answers and what it refuses.
#include "gateway/token_id_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gateway/server.h"
#include "gateway/testing/test_server.h"

namespace sixfold::gateway {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

class TokenIdServer : public testing::Test {
 protected:
  TokenIdServer() {
    ServerOptions options{.served_model_names = {"m"}};
    options.http.port = 0;
    server = std::move(Server::Start(options, backend, codec)).value();
  }
  RawResponse Post(const std::string& path, const Json& body) const {
    RawClient client(server->port());
    client.Send(PostRequest(path, body.dump()));
    return client.ReadResponse();
  }

  ScriptedBackend backend{SayText("abc")};
  const TokenIdCodec codec;
  std::unique_ptr<Server> server;
};

TEST_F(TokenIdServer, CompletesTokenIdsWithoutText) {
  const RawResponse response =
      Post("/v1/completions", {{"prompt", {5, 6, 7}}, {"max_tokens", 9}, {"logprobs", 2}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(backend.last_prompt(), (std::vector<TokenId>{5, 6, 7}));
  const Json answer = Json::parse(response.body);
  EXPECT_EQ(answer["choices"][0]["text"], "");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4) << "with the end token";
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"],
            (Json{"token_id:97", "token_id:98", "token_id:99"}));
}

TEST_F(TokenIdServer, AStreamHasAChunkForEachToken) {
  const RawResponse response =
      Post("/v1/completions", {{"prompt", {5}}, {"max_tokens", 3}, {"stream", true}});
  ASSERT_EQ(response.status, 200);
  int chunks = 0;
  for (size_t at = 0; (at = response.body.find("\"text\":\"\"", at)) != std::string::npos; ++at)
    ++chunks;
  EXPECT_EQ(chunks, 3);
  EXPECT_THAT(response.body, HasSubstr("\"finish_reason\":\"length\""));
}

TEST_F(TokenIdServer, RefusesWhatNeedsText) {
  const auto refused = [&](const std::string& path, const Json& body) {
    const RawResponse response = Post(path, body);
    EXPECT_EQ(response.status, 400);
    EXPECT_THAT(response.body, HasSubstr("no tokenizer"));
    return Json::parse(response.body)["error"]["param"];
  };
  EXPECT_EQ(refused("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "a"}}}}}),
            "messages");
  EXPECT_EQ(refused("/v1/completions", {{"prompt", "text"}}), "prompt");
  EXPECT_EQ(refused("/v1/completions", {{"prompt", {1}}, {"stop", "x"}}), "stop");
}

}  // namespace
}  // namespace sixfold::gateway
