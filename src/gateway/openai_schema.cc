#include "gateway/openai_schema.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "gateway/json_writer.h"
#include "gateway/request_fields.h"

namespace sixfold::gateway {
namespace {

// Reads the values of served fields, each under the name it was given by, into a request.
class FieldReader {
 public:
  FieldReader(JsonBody& body, const SchemaOptions& options) : body_(body), options_(options) {}

  // Reads the field or one of its aliases; all that are given must agree.
  void Read(const Field& field, ApiRequest& request) {
    const Alias* alias = nullptr;
    const char* written = body_.Given(field.name) ? field.name : nullptr;
    ReadAs(field, field.name, nullptr, request);
    const bool field_given = written != nullptr;
    for (const Field* other : AliasesOf(request.endpoint, field.name)) {
      if (!body_.Given(other->name)) continue;
      alias = &std::get<Alias>(other->rule);
      if (!written) {
        written = other->name;
        ReadAs(field, written, alias, request);
        continue;
      }
      ApiRequest as_other;
      ReadAs(field, other->name, alias, as_other);
      if ((field_given && alias->yields) || body_.error() || Equal(field, request, as_other))
        continue;
      body_.Fail(other->name, "invalid_value",
                 std::string("'") + written + "' and '" + other->name +
                     "' are names of one field, and their values differ; send one of them");
    }
    if (written) written_[field.name] = written;
  }

  // The name a field was given by, or nullptr.
  const char* Written(std::string_view field) const {
    const auto it = written_.find(field);
    return it == written_.end() ? nullptr : it->second;
  }

  // Whether a value asked for all that the context leaves.
  bool NoLimit() const { return no_limit_; }

 private:
  // A default of the model's files, or ours where it gives none (or one that no request could ask
  // for).
  double ModelDefault(const NumberField& f, double otherwise) const {
    const double value = f.model ? options_.defaults.*f.model : -1;
    return value >= 0 && InRange(value, f.range) ? value : otherwise;
  }
  template <typename T>
  T ModelDefault(const IntField<T>& f, T otherwise) const {
    const int64_t value = f.model ? options_.defaults.*f.model : -1;
    return value > 0 && value >= f.range.low && value <= f.range.high
               ? static_cast<T>(value)
               : f.otherwise.value_or(otherwise);
  }

  void ReadAs(const Field& field, const char* name, const Alias* alias, ApiRequest& request) {
    if (alias && alias->no_limit && body_.HasOneOf(name, alias->no_limit)) {
      if (const auto* f = std::get_if<IntField<int64_t>>(&field.rule))
        f->to(request) = std::numeric_limits<int64_t>::max();
      no_limit_ = true;
      return;
    }
    std::visit([&](const auto& rule) { Take(rule, name, request); }, field.rule);
  }

  void Take(const BoolField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.Bool(name, f.to(r));
  }
  template <typename T>
  void Take(const IntField<T>& f, const char* name, ApiRequest& r) {
    const auto value = body_.Int(name, f.range);
    f.to(r) = value ? static_cast<T>(*value) : ModelDefault(f, f.to(r));
  }
  void Take(const NumberField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.Number(name, f.range, ModelDefault(f, f.to(r)));
  }
  void Take(const StringField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.String(name, f.to(r));
  }
  void Take(const StringsField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.StringOrList(name, f.count_max, f.bytes_max);
  }
  void Take(const SeedField& f, const char* name, ApiRequest& r) { f.to(r) = body_.Seed(name); }
  void Take(const TokenIdsField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.TokenIds(name, options_.vocab, f.count_max);
  }
  void Take(const TokenBiasField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.TokenBias(name, options_.vocab, f.range);
  }
  void Take(const PromptsField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.Prompts(name, options_.vocab, f.count_max);
  }
  void Take(const MessagesField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.Messages(name);
  }
  void Take(const ObjectField& f, const char* name, ApiRequest& r) {
    f.to(r) = body_.ObjectWith(name, "");
  }
  void Take(const MembersField&, const char* name, ApiRequest&) { (void)body_.IsObject(name); }
  void Take(const Alias&, const char*, ApiRequest&) {}
  void Take(const Refused&, const char*, ApiRequest&) {}
  void Take(const NoEffect&, const char*, ApiRequest&) {}

  static bool Equal(const Field& field, ApiRequest& a, ApiRequest& b) {
    return std::visit(
        [&](const auto& rule) {
          if constexpr (requires { rule.to(a); }) {
            return rule.to(a) == rule.to(b);
          } else {
            return true;
          }
        },
        field.rule);
  }

  JsonBody& body_;
  const SchemaOptions& options_;
  std::map<std::string_view, const char*> written_;  // by the field's own name
  bool no_limit_ = false;
};

// Names of ignored fields as header and log may show them: the first few of their order.
class IgnoredNames {
 public:
  void Add(std::string_view object, std::string_view member = "") {
    ++count_;
    std::string name(object);
    if (!member.empty()) (name += '.') += member;
    if (first_.size() == kIgnoredNamesMax && name >= *first_.rbegin()) return;
    first_.insert(std::move(name));
    if (first_.size() > kIgnoredNamesMax) first_.erase(std::prev(first_.end()));
  }
  std::string Text() const {
    std::string text;
    for (const std::string& name : first_) {
      if (&name != &*first_.begin()) text += ", ";
      text += name.empty() ? "(empty)" : Shown(name);
    }
    if (count_ > first_.size()) text += ", and " + std::to_string(count_ - first_.size()) + " more";
    return text;
  }

 private:
  // Percent-encoded but for letters, digits, '_', '-' and '.', and cut.
  static std::string Shown(std::string_view name) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : name) {
      if (out.size() >= kIgnoredNameBytesMax) return out + "...";
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
      if (plain) {
        out += c;
      } else {
        const auto byte = static_cast<unsigned char>(c);
        out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
      }
    }
    return out;
  }

  std::set<std::string> first_;
  size_t count_ = 0;
};

std::string InWords(std::string_view values) {
  values.remove_prefix(1);
  values.remove_suffix(1);
  return std::string(values);
}

// Fails for a field that asks for something that is not served, unless it asks for nothing.
void Refuse(JsonBody& body, const ApiRequest& request, const char* name, const Refused& rule,
            IgnoredNames& ignored) {
  const auto ignore_member = [&](std::string_view member) {
    ignored.Add(name, member);
    return true;
  };
  if (body.HasOneOf(name, rule.neutral, ignore_member)) return;
  const auto& unless = rule.unless;
  for (const char* field : {unless.field, unless.or_field}) {
    if (field && body.HasOneOf(field, unless.values)) return;
  }
  if (rule.idle.is && rule.idle.is(request)) return;
  std::string message = std::string("'") + name + "' is not supported";
  if (const std::string values = InWords(rule.neutral); !values.empty())
    message += " other than " + values;
  message += std::string(": ") + rule.reason;
  if (unless.field) {
    message +=
        std::string(" (it passes beside '") + unless.field + "': " + InWords(unless.values) + ")";
  }
  body.Fail(name, "unsupported_parameter", message);
}

// Walks over what was given: refuses what would change the answer, and gathers what no row has.
void RefuseOrIgnore(JsonBody& body, ApiRequest& request) {
  IgnoredNames ignored;
  body.VisitNames([&](std::string_view name) {
    // A name with a dot is no member of an object here, whatever the table has under it.
    const bool dotted = name.find('.') != std::string_view::npos;
    const Field* field = FindField(request.endpoint, name);
    if (!field || (dotted && !std::holds_alternative<NoEffect>(field->rule))) {
      ignored.Add(name);
    } else if (std::holds_alternative<MembersField>(field->rule)) {
      const std::string prefix = std::string(name) + ".";
      body.VisitNames(field->name, [&](std::string_view member) {
        if (!FindField(request.endpoint, prefix + std::string(member))) ignored.Add(name, member);
        return true;
      });
    } else if (const auto* refused = std::get_if<Refused>(&field->rule)) {
      Refuse(body, request, std::string(name).c_str(), *refused, ignored);
    }
    return !body.error();
  });
  request.ignored = ignored.Text();
}

void CheckLengths(JsonBody& body, const FieldReader& reader, ApiRequest& request) {
  const SamplingParams& sampling = request.sampling;
  constexpr const char* kLength = "max_completion_tokens";
  const char* written = reader.Written(kLength);
  request.max_tokens_given =
      written ? !reader.NoLimit() : request.endpoint == Endpoint::kCompletions;
  if (sampling.min_tokens <= sampling.max_tokens) return;
  const char* name = reader.Written("min_tokens");
  body.Fail(name ? name : "min_tokens", "invalid_value",
            std::string("'") + (name ? name : "min_tokens") + "' must be at most '" +
                (written ? written : "max_tokens") + "', which is " +
                std::to_string(sampling.max_tokens) + ", got " +
                std::to_string(sampling.min_tokens));
}

// What holds between fields.
void CheckTogether(JsonBody& body, const FieldReader& reader, ApiRequest& request) {
  SamplingParams& sampling = request.sampling;
  if (request.best_of > sampling.n) {
    body.Fail("best_of", "unsupported_parameter",
              "'best_of' is not supported above 'n', which is " + std::to_string(sampling.n));
  }
  CheckLengths(body, reader, request);
  if (request.top_logprobs > 0 && !request.chat_logprobs) {
    body.Fail("top_logprobs", "invalid_value", "'top_logprobs' needs 'logprobs' to be true");
  }
  if (request.chat_logprobs) sampling.logprobs = static_cast<int>(request.top_logprobs);
  if (body.Given("stream_options") && !request.stream) {
    body.Fail("stream_options", "invalid_value",
              "'stream_options' is only allowed when 'stream' is true");
  }
  if (request.prompts.size() * static_cast<size_t>(sampling.n) > static_cast<size_t>(kChoicesMax)) {
    body.Fail("n", "invalid_value",
              "prompts times 'n' must be at most " + std::to_string(kChoicesMax));
  }
  // Templates of models that reason in levels read it under this name; others do not look.
  if (!request.reasoning_effort.empty()) {
    JsonWriter member;
    member.Key("reasoning_effort").String(request.reasoning_effort);
    request.template_kwargs_json =
        body.ObjectWith("chat_template_kwargs", std::move(member).Take());
  }
}

}  // namespace

std::variant<ApiRequest, ApiError> ParseApiRequest(Endpoint endpoint, std::string_view text,
                                                   const SchemaOptions& options) {
  JsonBody body(text);
  ApiRequest request;
  if (body.error()) return *body.error();
  request.endpoint = endpoint;
  FieldReader reader(body, options);
  for (const Field& field : ServedFields()) {
    if ((field.on & EndpointBit(endpoint)) && IsServed(field)) reader.Read(field, request);
  }
  CheckTogether(body, reader, request);
  RefuseOrIgnore(body, request);
  if (body.error()) return *body.error();
  return request;
}

}  // namespace sixfold::gateway
