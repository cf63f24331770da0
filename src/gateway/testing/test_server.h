// A whole gateway over the scripted backend on a free port, for one test.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gateway/server.h"
#include "gateway/testing/byte_codec.h"
#include "gateway/testing/raw_client.h"
#include "gateway/testing/scripted_backend.h"

namespace sixfold::gateway {

// Every choice answers `text`, a token a byte.
inline ScriptOptions SayText(const std::string& text) {
  ScriptOptions script;
  script.script = [text](const Request&, int, uint64_t) {
    std::vector<TokenId> tokens;
    for (const unsigned char c : text) tokens.push_back(c);
    return tokens;
  };
  return script;
}

// Thread rule: as its parts.
class TestServer {
 public:
  explicit TestServer(ScriptOptions script, ServerOptions options = {})
      : backend(std::move(script)) {
    options.http.port = 0;
    if (options.served_model_names.empty()) options.served_model_names = {"m"};
    auto started = Server::Start(std::move(options), backend, codec);
    SF_CHECK(started.ok());
    server = std::move(started).value();
  }

  RawClient Connect() const { return RawClient(server->port()); }
  RawResponse Post(const std::string& path, const std::string& body,
                   const std::string& headers = "") const {
    RawClient client = Connect();
    client.Send(PostRequest(path, body, headers));
    return client.ReadResponse();
  }
  RawResponse Get(const std::string& path, const std::string& headers = "") const {
    RawClient client = Connect();
    client.Send(GetRequest(path, headers));
    return client.ReadResponse();
  }

  ScriptedBackend backend;
  const ByteCodec codec;
  std::unique_ptr<Server> server;  // last: ends before what it uses
};

}  // namespace sixfold::gateway
