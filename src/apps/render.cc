// sixfold render: the text that a chat template makes of messages.
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/loading.h"
#include "apps/output.h"
#include "apps/text_input.h"
#include "apps/text_loading.h"
#include "text/chat_template.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;

constexpr size_t kJsonBytesMax = size_t{64} << 20;

Result<ordered_json> ReadJson(const std::string& path) {
  SF_ASSIGN_OR_RETURN(std::string read, ReadTextFile(path, kJsonBytesMax));
  SF_ASSIGN_OR_RETURN(const std::string text, Utf8Text(std::move(read), NotUtf8::kRefused, path == "-" ? "stdin" : path));
  ordered_json value = ordered_json::parse(text, nullptr, false);
  if (value.is_discarded()) return InvalidFile(path + ": no valid JSON");
  return value;
}

std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

struct RenderInput {
  ordered_json messages;
  ChatTemplateOptions options;
};

// Takes an object's known members out of `variables` into the options; what is left are variables
// of the template.
Status ReadVariables(const std::string& path, ordered_json variables, RenderInput* input) {
  if (!variables.contains("messages"))
    return InvalidFile(path + ": the object has no \"messages\"");
  input->messages = variables["messages"];
  variables.erase("messages");
  if (variables.contains("add_generation_prompt") &&
      variables["add_generation_prompt"].is_boolean()) {
    input->options.add_generation_prompt = variables["add_generation_prompt"].get<bool>();
    variables.erase("add_generation_prompt");
  }
  if (variables.contains("tools")) {
    if (!variables["tools"].is_null()) input->options.tools_json = Dump(variables["tools"]);
    variables.erase("tools");
  }
  if (variables.contains("documents")) {
    if (!variables["documents"].is_null())
      input->options.documents_json = Dump(variables["documents"]);
    variables.erase("documents");
  }
  if (!variables.empty()) input->options.kwargs_json = Dump(variables);
  return OkStatus();
}

}  // namespace

Status RunRender(const Options& options) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  const std::string& messages_path = options.arguments().front();
  SF_ASSIGN_OR_RETURN(ordered_json given, ReadJson(messages_path));
  RenderInput input;
  input.options.special_tokens = tokenizer->special_tokens();
  input.options.add_generation_prompt = options.Flag("add-generation-prompt");
  if (given.is_object()) {
    SF_RETURN_IF_ERROR(ReadVariables(messages_path, std::move(given), &input));
  } else {
    input.messages = std::move(given);
  }
  if (!input.messages.is_array())
    return InvalidFile(messages_path + ": expected a list of messages");
  if (options.IsGiven("add-generation-prompt"))
    input.options.add_generation_prompt = options.Flag("add-generation-prompt");
  if (!options.Text("tools").empty()) {
    SF_ASSIGN_OR_RETURN(const ordered_json tools, ReadJson(options.Text("tools")));
    if (!tools.is_array()) return InvalidFile(options.Text("tools") + ": expected a list of tools");
    input.options.tools_json = Dump(tools);
  }
  if (!options.Text("chat-template-kwargs").empty())
    input.options.kwargs_json = options.Text("chat-template-kwargs");
  SF_ASSIGN_OR_RETURN(const std::optional<std::string> override_source, ChatTemplateFrom(options));
  const std::string* source = SelectChatTemplate(*tokenizer, !input.options.tools_json.empty());
  if (override_source) source = &*override_source;
  if (source == nullptr)
    return InvalidFile(path + ": has no chat template; give one with --chat-template FILE");
  SF_ASSIGN_OR_RETURN(const std::string text,
                      RenderChatTemplate(*source, Dump(input.messages), input.options));
  if (options.Flag("json")) return Print(Dump(ordered_json{{"text", text}}) + "\n");
  return Print(StdoutIsTerminal() ? text + "\n" : text);
}

}  // namespace sixfold::apps
