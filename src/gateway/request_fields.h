// The table of all fields of the bodies of POST /v1/chat/completions and /v1/completions: which
// endpoint has a field, its type, range and default, and what becomes of it: served, another name
// of a served one, refused with the reason, or taken without effect. ParseApiRequest is driven by
// it and docs/api.md is made from it; there is no second place where a field is named with its
// range. A field that is in no row is ignored and named in the response header x-sixfold-ignored.
// Sources of the names: the OpenAI API reference and the request types of vLLM, SGLang, llama.cpp,
// text-generation-inference, TensorRT-LLM, LMDeploy, Ollama, TabbyAPI, KoboldAI and
// text-generation-webui.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gateway/json_body.h"
#include "gateway/openai_schema.h"

namespace sixfold::gateway {

constexpr unsigned kOnChat = 1, kOnCompletions = 2, kOnBoth = 3;

// Of the list of ignored names: how many are named, and how much of each.
constexpr size_t kIgnoredNamesMax = 16, kIgnoredNameBytesMax = 48;

constexpr unsigned EndpointBit(Endpoint endpoint) {
  return endpoint == Endpoint::kChat ? kOnChat : kOnCompletions;
}

// Where a value goes. What a freshly made ApiRequest holds there is the field's default, unless the
// row says otherwise.
template <typename T>
using Slot = T& (*)(ApiRequest&);

struct BoolField {
  Slot<bool> to;
};
template <typename T>
struct IntField {
  IntRange range;
  Slot<T> to;
  int64_t GenerationDefaults::*model = nullptr;  // of the model's files; nullptr: they have none
  std::optional<T> otherwise = std::nullopt;
};
struct NumberField {
  NumberRange range;
  Slot<double> to;
  double GenerationDefaults::*model = nullptr;
};
struct StringField {
  Slot<std::string> to;
};
struct StringsField {  // one, or an array
  size_t count_max, bytes_max;
  Slot<std::vector<std::string>> to;
};
struct SeedField {
  Slot<std::optional<uint64_t>> to;
};
struct TokenIdsField {
  size_t count_max;
  Slot<std::vector<TokenId>> to;
};
struct TokenBiasField {
  NumberRange range;
  Slot<std::map<TokenId, double>> to;
};
struct PromptsField {
  size_t count_max;
  Slot<std::vector<PromptInput>> to;
};
struct MessagesField {
  Slot<std::string> to;
};
struct ObjectField {  // kept as JSON text
  Slot<std::string> to;
};
// An object whose members are fields of their own, in rows named "object.member".
struct MembersField {};

// Another name of a served field: its type, range and meaning. Given beside the field, or beside
// another of its names, the values must be the same.
struct Alias {
  const char* of;
  bool yields = false;             // beside the field itself the field's value counts
  const char* no_limit = nullptr;  // JSON array of values that ask for all that the context leaves
};

// A field that would change the answer and is not served. It passes with a value that asks for
// nothing, or where something else makes it idle.
struct Refused {
  const char* neutral;  // JSON array of the values that pass; an object passes by its members
  const char* reason;   // why, and the way out
  // Passes where `field` (or `or_field`) is given with one of `values`, a JSON array: the switch
  // is off.
  struct Unless {
    const char* field = nullptr;
    const char* values = "[]";
    const char* or_field = nullptr;
  } unless = {};
  // Passes where the rest of the request makes it idle, `when` in words.
  struct Idle {
    bool (*is)(const ApiRequest&) = nullptr;
    const char* when = "";
  } idle = {};
};

// Known and harmless: about bookkeeping, routing, speed, or output that there is never any of.
struct NoEffect {};

using FieldRule =
    std::variant<BoolField, IntField<int>, IntField<int64_t>, NumberField, StringField,
                 StringsField, SeedField, TokenIdsField, TokenBiasField, PromptsField,
                 MessagesField, ObjectField, MembersField, Alias, Refused, NoEffect>;

struct Field {
  const char* name;  // "object.member"; or "prefix*", every name that starts so and has no own row
  unsigned on;       // endpoints
  FieldRule rule;
  const char* about = "";         // for docs/api.md
  const char* default_text = "";  // where the default is no value that a request could give
};

inline bool IsServed(const Field& field) {
  return !std::holds_alternative<Alias>(field.rule) &&
         !std::holds_alternative<Refused>(field.rule) &&
         !std::holds_alternative<NoEffect>(field.rule);
}

std::span<const Field> ServedFields();  // aliases among them, after their fields
std::span<const Field> OtherFields();   // refused, and without effect

// The row of a name as it stands in a body, or nullptr: its own row, or the longest prefix's.
const Field* FindField(Endpoint endpoint, std::string_view name);
// The aliases of a served field at that endpoint, in the table's order.
std::span<const Field* const> AliasesOf(Endpoint endpoint, std::string_view name);

}  // namespace sixfold::gateway
