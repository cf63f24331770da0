#include "text/chat_template.h"

#include <ctime>
#include <vector>

#include "text/rust_call.h"

namespace sixfold {

Status CheckChatTemplate(std::string_view source) {
  RustBuffer error;
  const int code = sixfold_template_check(SliceOf(source), error.get());
  if (code == SIXFOLD_TEXT_OK) return OkStatus();
  return StatusOf(code, error.view(), StatusCode::kInvalidArgument).WithContext("chat template");
}

Result<std::string> RenderChatTemplate(std::string_view source, std::string_view messages_json,
                                       const ChatTemplateOptions& options) {
  std::vector<sixfold_variable> variables;
  const auto add = [&](std::string_view name, std::string_view value, int32_t kind) {
    variables.push_back({SliceOf(name), SliceOf(value), kind});
  };
  // Later ones win: a request's own variables replace special tokens and absent tools, never what is given here.
  for (const auto& [role, text] : options.special_tokens) add(role, text, SIXFOLD_VARIABLE_TEXT);
  add("tools", "null", SIXFOLD_VARIABLE_JSON);
  add("documents", "null", SIXFOLD_VARIABLE_JSON);
  if (!options.kwargs_json.empty()) add("chat_template_kwargs", options.kwargs_json, SIXFOLD_VARIABLE_OBJECT);
  add("messages", messages_json, SIXFOLD_VARIABLE_JSON);
  if (!options.tools_json.empty()) add("tools", options.tools_json, SIXFOLD_VARIABLE_JSON);
  if (!options.documents_json.empty()) add("documents", options.documents_json, SIXFOLD_VARIABLE_JSON);
  add("add_generation_prompt", options.add_generation_prompt ? "true" : "false", SIXFOLD_VARIABLE_JSON);

  const sixfold_template_limits limits = {options.steps_max, options.bytes_max, options.time_ms_max};
  const int64_t now_s = options.now_s.value_or(static_cast<int64_t>(std::time(nullptr)));
  RustBuffer text;
  RustBuffer error;
  const int code = sixfold_template_render(SliceOf(source), variables.data(), variables.size(), now_s, &limits,
                                           text.get(), error.get());
  if (code == SIXFOLD_TEXT_RAISED) return InvalidArgument(std::string(error.view()));
  if (code != SIXFOLD_TEXT_OK) {
    return StatusOf(code, error.view(), StatusCode::kInvalidArgument).WithContext("chat template");
  }
  return std::string(text.view());
}

const std::string* SelectChatTemplate(const Tokenizer& tokenizer, bool with_tools) {
  const std::string* for_tools = with_tools ? tokenizer.FindChatTemplate("tool_use") : nullptr;
  return for_tools != nullptr ? for_tools : tokenizer.FindChatTemplate("default");
}

}  // namespace sixfold
