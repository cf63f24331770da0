#include "apps/log_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace sixfold::apps {
namespace {

// A JSON string of printable ASCII: line breaks, control characters of any kind, right-to-left
// marks and broken UTF-8 all become escapes.
std::string Quoted(std::string text) {
  if (text.size() > kLogTextBytesMax) text = text.substr(0, kLogTextBytesMax) + "...";
  return nlohmann::json(std::move(text))
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

bool IsPlain(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return letter || std::string_view("-_.:/@+,~%[]").find(c) != std::string_view::npos;
}

// Bare where that can be told from what follows.
std::string TextValue(const std::string& text) {
  const bool plain = !text.empty() && text.size() <= kLogTextBytesMax &&
                     std::all_of(text.begin(), text.end(), IsPlain);
  return plain ? text : Quoted(text);
}

std::string Number(double value) {
  return std::isfinite(value) ? fmt::format("{:.3f}", value) : "null";
}

template <typename OfText>
std::string Value(const LogField& field, OfText of_text) {
  if (const auto* integer = std::get_if<int64_t>(&field.value)) return std::to_string(*integer);
  if (const auto* number = std::get_if<double>(&field.value)) return Number(*number);
  if (const auto* flag = std::get_if<bool>(&field.value)) return *flag ? "true" : "false";
  return of_text(std::get<std::string>(field.value));
}

}  // namespace

std::string LogText(const LogLine& line) {
  const std::string& words = line.message.empty() ? line.event : line.message;
  const std::string quoted = Quoted(words);
  // Our own words need no quotes; what they quote from elsewhere is escaped all the same.
  const bool printable =
      std::all_of(words.begin(), words.end(), [](char c) { return c >= ' ' && c <= '~'; });
  std::string out =
      printable && words.size() <= kLogTextBytesMax ? words : quoted.substr(1, quoted.size() - 2);
  for (const LogField& field : line.fields) out += " " + field.name + "=" + Value(field, TextValue);
  return out;
}

std::string LogJson(const LogLine& line) {
  std::string out = "\"event\":" + Quoted(line.event);
  if (!line.message.empty()) out += ",\"message\":" + Quoted(line.message);
  for (const LogField& field : line.fields)
    out += "," + Quoted(field.name) + ":" + Value(field, Quoted);
  return out + "}";
}

}  // namespace sixfold::apps
