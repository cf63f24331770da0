#include "gateway/chat_messages.h"

#include <nlohmann/json.hpp>

namespace sixfold::gateway {
namespace {

// One message's content as text. Parts other than text are refused by name.
std::string ContentText(JsonBody& body, const std::string& where, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    WrongType(body, where, "a string, an array of text parts, or null", content);
    return "";
  }
  std::string text;
  bool first = true;
  for (const Json& part : content) {
    if (part.is_object() && part.contains("type") && part["type"].is_string() &&
        part["type"].get_ref<const std::string&>() != "text") {
      body.Fail(where, "unsupported_parameter",
                "'" + where + "' has a part of type " + Show(part["type"]) +
                    "; this model takes text only");
      return "";
    }
    if (!part.is_object() || !part.contains("text") || !part["text"].is_string() ||
        !part.contains("type")) {
      WrongType(body, where, "text parts {\"type\": \"text\", \"text\": string}", part);
      return "";
    }
    if (!first) text += '\n';
    first = false;
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// Templates take arguments as objects, clients send them as JSON text. The text goes in as it is:
// its order of keys is part of what the model once wrote.
std::string ToolCallsJson(const Json& calls) {
  std::string out = "[";
  for (const Json& call : calls) {
    if (out.size() > 1) out += ',';
    const bool has_text = call.is_object() && call.contains("function") &&
                          call["function"].is_object() && call["function"].contains("arguments") &&
                          call["function"]["arguments"].is_string();
    const std::string text = has_text ? call["function"]["arguments"].get<std::string>() : "";
    if (!has_text || ShapeOf(text).depth > JsonBody::kDepthMax || !Json::accept(text) ||
        !Json::parse(text).is_object()) {
      out += Dump(call);
      continue;
    }
    Json function = call["function"];
    function.erase("arguments");
    Json rest = call;
    rest.erase("function");
    std::string head = Dump(rest);
    head.pop_back();
    if (head.size() > 1) head += ',';
    std::string inner = Dump(function);
    inner.pop_back();
    if (inner.size() > 1) inner += ',';
    out += head + "\"function\":" + inner + "\"arguments\":" + text + "}}";
  }
  return out + "]";
}

std::string MessageJson(JsonBody& body, const std::string& where, const Json& message) {
  constexpr const char* kRoles = "one of system, developer, user, assistant, tool, function";
  if (!message.is_object()) {
    WrongType(body, where, "an object with role and content", message);
    return "";
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) {
    WrongType(body, where + ".role", kRoles, role == message.end() ? Json() : *role);
    return "";
  }
  const auto& name = role->get_ref<const std::string&>();
  if (name != "system" && name != "developer" && name != "user" && name != "assistant" &&
      name != "tool" && name != "function") {
    Refuse(body, where + ".role", kRoles, *role);
    return "";
  }
  Json out = message;
  if (name == "developer") out["role"] = "system";
  const auto calls = message.find("tool_calls");
  const bool has_calls =
      calls != message.end() && !calls->is_null() && !(calls->is_array() && calls->empty());
  if (has_calls && !calls->is_array()) {
    WrongType(body, where + ".tool_calls", "an array", *calls);
    return "";
  }
  const auto content = message.find("content");
  if (content != message.end() && !content->is_null()) {
    out["content"] = ContentText(body, where + ".content", *content);
  } else if (has_calls ||
             (message.contains("function_call") && !message["function_call"].is_null())) {
    out["content"] = nullptr;
  } else if (content == message.end() && name != "assistant") {
    body.Fail(where + ".content", "missing_required_parameter",
              "'" + where + ".content' is required");
    return "";
  } else {
    out["content"] = "";
  }
  out.erase("tool_calls");
  std::string text = Dump(out);
  if (has_calls) {
    text.pop_back();
    text += ",\"tool_calls\":" + ToolCallsJson(*calls) + "}";
  }
  return text;
}

}  // namespace

std::string ChatMessagesJson(JsonBody& body, const char* field, const Json* value) {
  if (!value) {
    body.Fail(field, "missing_required_parameter",
              std::string("'") + field + "' is required: an array of messages");
    return "[]";
  }
  if (!value->is_array() || value->empty()) {
    value->is_array() ? Refuse(body, field, "an array of at least one message", *value)
                      : WrongType(body, field, "an array of messages", *value);
    return "[]";
  }
  std::string out = "[";
  for (size_t i = 0; i < value->size() && !body.error(); ++i) {
    if (i > 0) out += ',';
    out += MessageJson(body, std::string(field) + "[" + std::to_string(i) + "]", (*value)[i]);
  }
  return out + "]";
}

}  // namespace sixfold::gateway
