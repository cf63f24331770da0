// The body of a POST, read by both endpoints: must end in a request or a refusal, whatever the
// bytes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gateway/openai_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sixfold::gateway::Endpoint;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    const auto result = sixfold::gateway::ParseApiRequest(endpoint, body, {.vocab = 1000});
    if (const auto* error = std::get_if<sixfold::gateway::ApiError>(&result)) {
      if (error->status < 400 || error->message.empty()) __builtin_trap();
      (void)sixfold::gateway::ErrorBody(*error);
    } else {
      // It becomes a header's value: bounded, and no byte that ends a line.
      const auto& ignored = std::get<sixfold::gateway::ApiRequest>(result).ignored;
      if (ignored.size() > 2048) __builtin_trap();
      for (const char c : ignored) {
        if (c < ' ' || c > '~') __builtin_trap();
      }
    }
  }
  return 0;
}
