#include "gateway/chat_messages.h"

#include <nlohmann/json.hpp>
#include <utility>

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

// Templates take arguments as objects, clients send them as JSON text. `containers_left` bounds
// what the texts of one request may become.
void ParseArguments(Json& calls, int64_t& containers_left) {
  for (Json& call : calls) {
    if (!call.is_object() || !call.contains("function")) continue;
    Json& function = call["function"];
    if (!function.is_object() || !function.contains("arguments")) continue;
    Json& arguments = function["arguments"];
    if (!arguments.is_string()) continue;
    const std::string& text = arguments.get_ref<const std::string&>();
    const Shape shape = ShapeOf(text);
    if (shape.depth > JsonBody::kDepthMax || shape.containers > containers_left) continue;
    containers_left -= shape.containers;
    Json parsed = Json::parse(text, nullptr, false);
    if (parsed.is_object()) arguments = std::move(parsed);
  }
}

bool HasValue(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

// The message with its members in their order. Roles are the template's affair, and so is a content
// that is null; what every template would stumble over is refused or mended here.
std::string MessageJson(JsonBody& body, const std::string& where, Json message,
                        int64_t& containers_left) {
  if (!message.is_object()) {
    WrongType(body, where, "an object with role and content", message);
    return "";
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) {
    WrongType(body, where + ".role", "a string", role == message.end() ? Json() : *role);
    return "";
  }
  const bool may_lack_content = *role == "assistant" || HasValue(message, "function_call");
  const auto calls = message.find("tool_calls");
  const bool has_calls =
      calls != message.end() && !calls->is_null() && !(calls->is_array() && calls->empty());
  if (has_calls && !calls->is_array()) {
    WrongType(body, where + ".tool_calls", "an array", *calls);
    return "";
  }
  if (has_calls) ParseArguments(*calls, containers_left);
  const auto content = message.find("content");
  if (content == message.end() && !has_calls && !may_lack_content) {
    body.Fail(where + ".content", "missing_required_parameter",
              "'" + where + ".content' is required");
    return "";
  }
  if (content != message.end() && !content->is_null()) {
    *content = ContentText(body, where + ".content", *content);
  }
  if (!has_calls) message.erase("tool_calls");
  return Dump(message);
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
  int64_t containers_left = JsonBody::kContainersMax;
  std::string out = "[";
  for (size_t i = 0; i < value->size() && !body.error(); ++i) {
    if (i > 0) out += ',';
    out += MessageJson(body, std::string(field) + "[" + std::to_string(i) + "]", (*value)[i],
                       containers_left);
  }
  return out + "]";
}

}  // namespace sixfold::gateway
