// Chat templates: Jinja2 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes,
// strftime_now, raise_exception, generation blocks), rendered by minijinja behind text-rs. A template comes with a
// model file and may be hostile, so its steps, memory and time are bounded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer.h"

namespace sixfold {

struct ChatTemplateOptions {
  bool add_generation_prompt = false;
  std::string tools_json;      // a JSON array of tools; "" for none
  std::string documents_json;  // a JSON array of documents; "" for none
  std::string kwargs_json;     // a JSON object of further variables (chat_template_kwargs); "" for none
  SpecialTokenTexts special_tokens;
  std::optional<int64_t> now_s;  // what strftime_now formats, in seconds since 1970; now when absent
  uint64_t steps_max = 20'000'000;       // template instructions
  uint64_t bytes_max = 256ull << 20;     // memory of one rendering; one string may have a quarter of it
  uint64_t time_ms_max = 20'000;
};

// kInvalidArgument if `source` is no template, with line and reason.
Status CheckChatTemplate(std::string_view source);

// The prompt that the template makes of a JSON array of messages, whose keys keep their order.
// Roles are what the template makes of them; "developer" becomes "system" unless a string of the
// template's code is "developer". A content that is null or absent reaches the template so; if
// rendering fails, it is rendered again with "" in those places. kInvalidArgument carries the
// template's own words when it calls raise_exception, or says what in the template or the messages
// is wrong.
Result<std::string> RenderChatTemplate(std::string_view source, std::string_view messages_json,
                                       const ChatTemplateOptions& options);

// The one of a tokenizer's templates that transformers would take: "tool_use" if there are tools and a template of that name,
// else "default". nullptr if the tokenizer has none.
const std::string* SelectChatTemplate(const Tokenizer& tokenizer, bool with_tools);

}  // namespace sixfold
