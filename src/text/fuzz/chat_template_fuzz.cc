// Bytes as a chat template, rendered over a small conversation within tight bounds. It may fail; it may not crash or hang.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sixfold;
  constexpr std::string_view kMessages =
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi <b>"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"a":[1,2.5]}}}]}])";
  ChatTemplateOptions options;
  options.add_generation_prompt = true;
  options.now_s = 1700000000;
  options.tools_json = R"([{"type":"function","function":{"name":"f","parameters":{"items":{}}}}])";
  options.steps_max = 100'000;
  options.bytes_max = 8 << 20;
  options.time_ms_max = 1000;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  auto text = RenderChatTemplate(source, kMessages, options);
  if (text.ok()) SF_CHECK(IsValidUtf8(*text));
  return 0;
}
