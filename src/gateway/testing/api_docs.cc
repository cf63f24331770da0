#include "gateway/testing/api_docs.h"

#include <limits>
#include <string_view>
#include <type_traits>

#include "gateway/json_writer.h"
#include "gateway/request_fields.h"

namespace sixfold::gateway {
namespace {

// %n and %b: the bounds of the list of ignored names.
constexpr std::string_view kIntroduction = R"(# Request fields

<!-- Made from src/gateway/request_fields*.cc by `scripted_server --print-api-docs`; a test compares it. Do not edit. -->

The bodies of `POST /v1/chat/completions` and `POST /v1/completions`, field by field. The parser is driven by the table that
this page is made from.

- `null` is the default of every field. Integers may be written as `16.0`. Of equal keys the last counts.
- A value of a wrong type is a 400 with code `invalid_type`, one out of range a 400 with code `invalid_value`; `param` names the
  field as the client wrote it.
- A field that would change the answer and is not served is a 400 with code `unsupported_parameter`, with the reason and the way
  out, except at values that ask for nothing.
- A field that is on none of these lists is ignored, and named in the response header `x-sixfold-ignored` and in the request's
  line of the log: `x-sixfold-ignored: foo, stream_options.bar`. At most %n are named, each cut after %b bytes, with what
  is no letter, digit, `_`, `-` or `.` percent-encoded.
)";

const char* Endpoints(unsigned on) {
  if (on == kOnBoth) return "both";
  return on == kOnChat ? "chat" : "completions";
}

struct TypeText {
  std::string operator()(const BoolField&) const { return "true or false"; }
  template <typename T>
  std::string operator()(const IntField<T>& f) const {
    return RangeText(f.range);
  }
  std::string operator()(const NumberField& f) const { return RangeText(f.range); }
  std::string operator()(const StringField&) const { return "a string"; }
  std::string operator()(const StringsField& f) const {
    return StringListText(f.count_max, f.bytes_max);
  }
  std::string operator()(const SeedField&) const { return "a 64-bit integer"; }
  std::string operator()(const TokenIdsField& f) const {
    return "an array of at most " + std::to_string(f.count_max) + " token ids";
  }
  std::string operator()(const TokenBiasField& f) const {
    return "an object, each value " + RangeText(f.range);
  }
  std::string operator()(const PromptsField& f) const {
    return "a string, an array of token ids, or an array of at most " +
           std::to_string(f.count_max) + " of either";
  }
  std::string operator()(const MessagesField&) const { return "an array of messages"; }
  std::string operator()(const ObjectField&) const { return "an object"; }
  std::string operator()(const MembersField&) const { return "an object"; }
  template <typename T>
  std::string operator()(const T&) const {
    return "";
  }
};

std::string Code(std::string_view text) { return "`" + std::string(text) + "`"; }

template <typename T>
std::string ValueText(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    JsonWriter out;
    return std::move(out.Number(value)).Take();
  } else {
    return "none";  // empty: no text, no list, no object
  }
}

// What the parser takes where the field is absent.
std::string DefaultText(const Field& field) {
  ApiRequest made;
  return std::visit(
      [&](const auto& rule) -> std::string {
        std::string text = field.default_text;
        bool of_model = false;
        if constexpr (requires { rule.model; }) of_model = rule.model != nullptr;
        if constexpr (requires { rule.to(made); }) {
          if (text.empty()) text = ValueText(rule.to(made));
        }
        return of_model ? "the model's, else " + text : text;
      },
      field.rule);
}

std::string Row(std::initializer_list<std::string> cells) {
  std::string row = "|";
  for (const std::string& cell : cells) row += " " + cell + (cell.empty() ? "|" : " |");
  return row + "\n";
}

std::string Head(std::initializer_list<std::string> cells) {
  std::string rule = "|";
  for (size_t i = 0; i < cells.size(); ++i) rule += " --- |";
  return "\n" + Row(cells) + rule + "\n";
}

std::string Introduction() {
  std::string text(kIntroduction);
  text.replace(text.find("%n"), 2, std::to_string(kIgnoredNamesMax));
  text.replace(text.find("%b"), 2, std::to_string(kIgnoredNameBytesMax));
  return text;
}

std::string ServedTable() {
  std::string out =
      "\n## Served\n\n\"The model's\" is the value of its `generation_config.json`.\n";
  out += Head({"field", "endpoint", "type and range", "default", ""});
  for (const Field& field : ServedFields()) {
    if (!IsServed(field)) continue;
    out += Row({Code(field.name), Endpoints(field.on), std::visit(TypeText(), field.rule),
                DefaultText(field), field.about});
  }
  return out;
}

std::string AliasTable() {
  std::string out =
      "\n## Other names\n\nType, range and meaning are those of the field. A field and its other "
      "names, given together with "
      "different values, are a 400.\n";
  out += Head({"name", "endpoint", "field", ""});
  for (const Field& field : ServedFields()) {
    const auto* alias = std::get_if<Alias>(&field.rule);
    if (!alias) continue;
    std::string about = field.about;
    if (alias->yields) about += std::string("; beside ") + Code(alias->of) + " that one counts";
    out += Row({Code(field.name), Endpoints(field.on), Code(alias->of), about});
  }
  return out;
}

std::string PassesText(const Refused& rule) {
  std::string_view values = rule.neutral;
  values = values.substr(1, values.size() - 2);
  std::string out = values.empty() ? "" : Code(values);
  if (rule.unless.field) {
    out += out.empty() ? "any value" : "; any value";
    std::string_view off = rule.unless.values;
    off = off.substr(1, off.size() - 2);
    out += " beside " + Code(rule.unless.field);
    if (rule.unless.or_field) out += " or " + Code(rule.unless.or_field);
    out += " of " + Code(off);
  }
  if (rule.idle.is) out += (out.empty() ? "where " : "; where ") + std::string(rule.idle.when);
  return out;
}

std::string RefusedTable() {
  std::string out =
      "\n## Refused\n\n`name*` is every name that starts so and has no row of its own.\n";
  out += Head({"field", "endpoint", "passes", "why, and the way out"});
  for (const Field& field : OtherFields()) {
    const auto* rule = std::get_if<Refused>(&field.rule);
    if (!rule) continue;
    std::string why = rule->reason;
    if (*field.about) why += std::string(" (") + field.about + ")";
    out += Row({Code(field.name), Endpoints(field.on), PassesText(*rule), why});
  }
  return out;
}

std::string NoEffectTable() {
  std::string out =
      "\n## Without effect\n\nTaken with any value; nothing of the answer depends on them.\n";
  out += Head({"field", "endpoint", ""});
  for (const Field& field : OtherFields()) {
    if (std::holds_alternative<NoEffect>(field.rule))
      out += Row({Code(field.name), Endpoints(field.on), field.about});
  }
  return out;
}

}  // namespace

std::string ApiDocs() {
  return Introduction() + ServedTable() + AliasTable() + RefusedTable() + NoEffectTable();
}

}  // namespace sixfold::gateway
