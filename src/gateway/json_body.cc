#include "gateway/json_body.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "gateway/chat_messages.h"
#include "gateway/json_values.h"

namespace sixfold::gateway {
namespace {

// Integers, and floats that are one (16.0). Bools are not numbers here.
std::optional<int64_t> AsInt(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) <= 9007199254740992.0 && number == std::floor(number))
      return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

std::string ShowNumber(double value) { return Dump(Json(value)); }

}  // namespace

std::string RangeText(const IntRange& range) {
  if (range.high == std::numeric_limits<int64_t>::max())
    return "an integer of at least " + std::to_string(range.low);
  return "an integer in [" + std::to_string(range.low) + ", " + std::to_string(range.high) + "]";
}

std::string RangeText(const NumberRange& range) {
  const char* open = range.low_end == NumberRange::Low::kExcluded ? "(" : "[";
  return std::string("a number in ") + open + ShowNumber(range.low) + ", " +
         ShowNumber(range.high) + "]";
}

bool InRange(double value, const NumberRange& range) {
  const bool above =
      range.low_end == NumberRange::Low::kExcluded ? value > range.low : value >= range.low;
  return above && value <= range.high;
}

std::string StringListText(size_t count_max, size_t bytes_max) {
  return "a string or an array of at most " + std::to_string(count_max) +
         " strings, each of 1 to " + std::to_string(bytes_max) + " bytes";
}

struct JsonBody::Impl {
  Json object = Json::object();

  // nullptr: absent or null. A member's object may be of another type; it has no members then.
  const Json* Find(std::string_view field) const {
    const size_t dot = field.find('.');
    const Json* value = FindIn(object, field.substr(0, dot));
    if (dot == std::string_view::npos || !value) return value;
    return value->is_object() ? FindIn(*value, field.substr(dot + 1)) : nullptr;
  }

  static const Json* FindIn(const Json& object, std::string_view name) {
    const auto it = object.find(std::string(name));
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
};

JsonBody::~JsonBody() = default;

JsonBody::JsonBody(std::string_view text) : impl_(std::make_unique<Impl>()) {
  const Shape shape = ShapeOf(text);
  if (shape.depth > kDepthMax) {
    Fail("", "invalid_json",
         "the body is nested deeper than " + std::to_string(kDepthMax) + " levels");
    return;
  }
  if (shape.containers > kContainersMax) {
    Fail("", "invalid_json",
         "the body has more than " + std::to_string(kContainersMax) + " arrays and objects");
    return;
  }
  try {
    Json parsed = Json::parse(text.begin(), text.end());
    if (!parsed.is_object()) {
      Fail("", "invalid_json", "the body must be a JSON object, got " + Show(parsed));
      return;
    }
    impl_->object = std::move(parsed);
  } catch (const Json::exception& e) {
    const std::string what = e.what();
    const size_t bracket = what.find("] ");
    Fail("", "invalid_json",
         "the body is not valid JSON: " +
             what.substr(bracket == std::string::npos ? 0 : bracket + 2));
  }
}

void JsonBody::Fail(const std::string& field, const std::string& code, const std::string& message) {
  if (!error_) error_ = ApiError{.message = message, .param = field, .code = code};
}

namespace {

// An array of token ids, checked; false when it is not one.
bool ReadTokenIds(JsonBody& body, const std::string& field, const Json& value, int64_t vocab,
                  std::vector<TokenId>& ids) {
  const IntRange range{0, vocab - 1};
  if (!value.is_array()) {
    WrongType(body, field, "an array of token ids", value);
    return false;
  }
  ids.reserve(value.size());
  for (const Json& item : value) {
    const auto id = AsInt(item);
    if (!id) {
      WrongType(body, field, "an array of token ids, each " + RangeText(range), item);
      return false;
    }
    if (*id < range.low || *id > range.high) {
      Refuse(body, field, "an array of token ids, each " + RangeText(range), item);
      return false;
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return true;
}

}  // namespace

bool JsonBody::Given(const char* field) const { return impl_->Find(field) != nullptr; }

bool JsonBody::Bool(const char* field, bool otherwise) {
  const Json* value = impl_->Find(field);
  if (!value) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  WrongType(*this, field, "true or false", *value);
  return otherwise;
}

std::optional<int64_t> JsonBody::Int(const char* field, IntRange range) {
  const Json* value = impl_->Find(field);
  if (!value) return std::nullopt;
  const auto number = AsInt(*value);
  if (number && *number >= range.low && *number <= range.high) return number;
  number || value->is_number() ? Refuse(*this, field, RangeText(range), *value)
                               : WrongType(*this, field, RangeText(range), *value);
  return std::nullopt;
}

std::optional<uint64_t> JsonBody::Seed(const char* field) {
  const Json* value = impl_->Find(field);
  if (!value) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (const auto number = AsInt(*value)) return static_cast<uint64_t>(*number);
  WrongType(*this, field, "a 64-bit integer", *value);
  return std::nullopt;
}

double JsonBody::Number(const char* field, NumberRange range, double otherwise) {
  const Json* value = impl_->Find(field);
  if (!value) return otherwise;
  if (!value->is_number()) {
    WrongType(*this, field, RangeText(range), *value);
    return otherwise;
  }
  const auto number = value->get<double>();
  if (InRange(number, range)) return number;
  Refuse(*this, field, RangeText(range), *value);
  return otherwise;
}

std::string JsonBody::String(const char* field, const std::string& otherwise) {
  const Json* value = impl_->Find(field);
  if (!value) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  WrongType(*this, field, "a string", *value);
  return otherwise;
}

std::vector<std::string> JsonBody::StringOrList(const char* field, size_t count_max,
                                                size_t bytes_max) {
  const Json* value = impl_->Find(field);
  if (!value) return {};
  const std::string expected = StringListText(count_max, bytes_max);
  std::vector<std::string> texts;
  if (value->is_string()) {
    texts.push_back(value->get<std::string>());
  } else if (value->is_array() && value->size() <= count_max) {
    for (const Json& item : *value) {
      if (!item.is_string()) {
        WrongType(*this, field, expected, item);
        return {};
      }
      texts.push_back(item.get<std::string>());
    }
  } else {
    value->is_array() ? Refuse(*this, field, expected, *value)
                      : WrongType(*this, field, expected, *value);
  }
  for (const std::string& text : texts) {
    if (text.empty() || text.size() > bytes_max) Refuse(*this, field, expected, Json(text));
  }
  return texts;
}

std::vector<TokenId> JsonBody::TokenIds(const char* field, int64_t vocab, size_t count_max) {
  const Json* value = impl_->Find(field);
  std::vector<TokenId> ids;
  if (!value) return ids;
  if (value->is_array() && value->size() > count_max) {
    Refuse(*this, field, "an array of at most " + std::to_string(count_max) + " token ids", *value);
    return ids;
  }
  ReadTokenIds(*this, field, *value, vocab, ids);
  return ids;
}

std::map<TokenId, double> JsonBody::TokenBias(const char* field, int64_t vocab, NumberRange range) {
  const Json* value = impl_->Find(field);
  std::map<TokenId, double> bias;
  if (!value) return bias;
  const std::string expected =
      "an object from token id in [0, " + std::to_string(vocab - 1) + "] to " + RangeText(range);
  if (!value->is_object()) {
    WrongType(*this, field, expected, *value);
    return bias;
  }
  for (const auto& [key, item] : value->items()) {
    int64_t id = -1;
    if (!key.empty() && key.size() <= 10 &&
        key.find_first_not_of("0123456789") == std::string::npos) {
      id = std::stoll(key);
    }
    if (id < 0 || id >= vocab) {
      Refuse(*this, field, expected, Json(key));
    } else if (!item.is_number()) {
      WrongType(*this, field, expected, item);
    } else if (!InRange(item.get<double>(), range)) {
      Refuse(*this, field, expected, item);
    } else {
      bias[static_cast<TokenId>(id)] = item.get<double>();
    }
    if (error_) return bias;
  }
  return bias;
}

std::vector<PromptInput> JsonBody::Prompts(const char* field, int64_t vocab, size_t count_max) {
  const std::string expected =
      "a string, an array of strings, an array of token ids, or an array of such arrays";
  const Json* value = impl_->Find(field);
  std::vector<PromptInput> prompts;
  if (!value) {
    Fail(field, "missing_required_parameter",
         std::string("'") + field + "' is required: " + expected);
    return prompts;
  }
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) {
    WrongType(*this, field, expected, *value);
    return prompts;
  }
  if (value->empty()) {
    Refuse(*this, field, expected + ", not empty", *value);
    return prompts;
  }
  const bool flat_ids = value->front().is_number();
  if (flat_ids) {
    std::vector<TokenId> ids;
    ReadTokenIds(*this, field, *value, vocab, ids);
    return {std::move(ids)};
  }
  if (value->size() > count_max) {
    Refuse(*this, field, "at most " + std::to_string(count_max) + " prompts", *value);
    return prompts;
  }
  const bool texts = value->front().is_string();
  for (const Json& item : *value) {
    if (texts && item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (!texts && item.is_array()) {
      std::vector<TokenId> ids;
      if (!ReadTokenIds(*this, field, item, vocab, ids)) return prompts;
      prompts.emplace_back(std::move(ids));
    } else {
      WrongType(*this, field, expected, item);
      return prompts;
    }
  }
  return prompts;
}

std::string JsonBody::Messages(const char* field) {
  return ChatMessagesJson(*this, field, impl_->Find(field));
}

std::string JsonBody::ObjectWith(const char* field, const std::string& extra) {
  const Json* value = impl_->Find(field);
  if (value && !value->is_object()) {
    WrongType(*this, field, "an object", *value);
    value = nullptr;
  }
  std::string text = value ? Dump(*value) : "{}";
  if (extra.empty()) return text;
  text.pop_back();
  if (text.size() > 1) text += ',';
  return text + extra + "}";
}

bool JsonBody::IsObject(const char* field) {
  const Json* value = impl_->Find(field);
  if (!value || value->is_object()) return true;
  WrongType(*this, field, "an object", *value);
  return false;
}

namespace {

void VisitMembers(const Json& object, const JsonBody::NameVisitor& visit) {
  for (auto it = object.begin(); it != object.end(); ++it) {
    if (!it->is_null() && !visit(it.key())) return;
  }
}

}  // namespace

void JsonBody::VisitNames(const NameVisitor& visit) const { VisitMembers(impl_->object, visit); }

void JsonBody::VisitNames(const char* object, const NameVisitor& visit) const {
  const Json* value = impl_->Find(object);
  if (value && value->is_object()) VisitMembers(*value, visit);
}

bool JsonBody::HasOneOf(const char* field, const char* values, const NameVisitor& beyond) const {
  const Json* value = impl_->Find(field);
  if (!value) return false;
  const Json options = Json::parse(values);
  if (!value->is_object())
    return std::find(options.begin(), options.end(), *value) != options.end();
  bool empty = true;
  VisitMembers(*value, [&](std::string_view) { return empty = false; });
  for (const Json& option : options) {
    if (!option.is_object() || (option.empty() && !empty)) continue;
    bool has_all = true;
    for (auto it = option.begin(); it != option.end(); ++it) {
      const Json* member = Impl::FindIn(*value, it.key());
      has_all = has_all && member && *member == *it;
    }
    if (!has_all) continue;
    if (beyond) {
      VisitMembers(*value, [&](std::string_view name) {
        return option.contains(std::string(name)) || beyond(name);
      });
    }
    return true;
  }
  return false;
}

}  // namespace sixfold::gateway
