// The real gateway over a scripted backend: what the client tests in tests/clients run against
// where no model is at hand, and what any SDK can be pointed at. Answers are words drawn from the
// seed, with emoji and accents.
//
//   scripted_server --print-api-docs > docs/api.md
//   scripted_server [--host H] [--port P] [--served-model-name N] [--api-key K] [--max-model-len N]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/random.h"
#include "gateway/server.h"
#include "gateway/testing/api_docs.h"
#include "gateway/testing/byte_codec.h"
#include "gateway/testing/scripted_backend.h"

namespace {

using namespace sixfold;           // NOLINT: a program of one file
using namespace sixfold::gateway;  // NOLINT

constexpr const char* kWords[] = {"the ",        "quick ", "brown ", "fox ",     "naïve ", "café ",
                                  "日本 ",       "jumps ", "over ",  "lazy ",    "🦊 ",  "dogs, ",
                                  "\"quoted\" ", "line\n", "stop ",  "🙂🙃 "};

std::vector<TokenId> Words(const Request& request, int choice, uint64_t seed) {
  constexpr int kCount = 60;
  std::vector<TokenId> tokens;
  for (int i = 0; i < kCount; ++i) {
    const RandomKey key{
        .seed = request.sampling.temperature == 0 ? 7 : seed,
        .choice = request.sampling.temperature == 0 ? 0u : static_cast<uint32_t>(choice),
        .position = static_cast<uint32_t>(i)};
    for (const unsigned char c : std::string(kWords[RandomBits(key)[0] % std::size(kWords)]))
      tokens.push_back(c);
  }
  return tokens;
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "scripted_server: %s\n", message.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--print-api-docs") == 0) {
    std::fputs(ApiDocs().c_str(), stdout);
    return 0;
  }
  ScriptOptions script{.script = Words};
  ServerOptions options{.served_model_names = {"scripted"}, .version = "scripted"};
  options.http.handle_signals = true;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 >= argc) return Fail(flag + " needs a value");
    const char* value = argv[i + 1];
    if (flag == "--host")
      options.http.host = value;
    else if (flag == "--port")
      options.http.port = static_cast<uint16_t>(std::atoi(value));
    else if (flag == "--served-model-name")
      options.served_model_names = {value};
    else if (flag == "--api-key")
      options.api_key = value;
    else if (flag == "--max-model-len")
      script.max_model_len = std::atoll(value);
    else
      return Fail("unknown flag " + flag);
  }
  ScriptedBackend backend(script);
  const ByteCodec codec;
  auto server = Server::Start(options, backend, codec);
  if (!server.ok()) return Fail(server.status().message());
  std::printf("listening on %s\n", (*server)->url().c_str());
  std::fflush(stdout);
  (*server)->Wait();
  return 0;
}
