// Reads the fields of a JSON object that came over the wire, each with its type and range. The
// first thing that is wrong is kept as an ApiError naming field, range and what was got; later
// reads then return their defaults. An absent field and null both mean the default. Pure: no I/O,
// no state beyond the object.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "gateway/api_error.h"

namespace sixfold::gateway {

struct IntRange {
  int64_t low = 0;
  int64_t high = std::numeric_limits<int64_t>::max();
};

struct NumberRange {
  double low = 0, high = 0;
  enum class Low : uint8_t { kIncluded, kExcluded } low_end = Low::kIncluded;
};

// The ranges in words, as refusals and docs/api.md have them.
std::string RangeText(const IntRange& range);
std::string RangeText(const NumberRange& range);
bool InRange(double value, const NumberRange& range);
std::string StringListText(size_t count_max, size_t bytes_max);

// A prompt as text or as token ids.
using PromptInput = std::variant<std::string, std::vector<TokenId>>;

class JsonBody {
 public:
  // Refuses what is not JSON, not UTF-8 (a lone surrogate's escape included), not an object, nested
  // deeper than kDepthMax, or made of more arrays and objects than kContainersMax. Of equal keys
  // the last one counts, as in Python.
  static constexpr int kDepthMax = 100;
  static constexpr int64_t kContainersMax = 1 << 18;  // each takes up to 100 bytes once it is read
  explicit JsonBody(std::string_view text);
  ~JsonBody();

  const std::optional<ApiError>& error() const { return error_; }
  void Fail(const std::string& field, const std::string& code, const std::string& message);

  // Fields are named as in the table of fields: "name", or "object.member".
  bool Given(const char* field) const;  // present and not null
  // Calls with the name of all that is given, of the body or of the object in one of its fields,
  // until a call returns false. A body has hundreds of thousands of names if it wants to.
  using NameVisitor = std::function<bool(std::string_view name)>;
  void VisitNames(const NameVisitor& visit) const;
  void VisitNames(const char* object, const NameVisitor& visit) const;
  // Whether a field that is given has one of the values of a JSON array. An object is equal to one
  // of them when it has all its members, and `beyond` is called with the names of its others; the
  // empty object is equal to itself only. Members that are null count as absent.
  bool HasOneOf(const char* field, const char* values, const NameVisitor& beyond = nullptr) const;
  bool Bool(const char* field, bool otherwise);
  std::optional<int64_t> Int(const char* field, IntRange range);
  std::optional<uint64_t> Seed(const char* field);  // any 64-bit integer; negative ones wrap
  double Number(const char* field, NumberRange range, double otherwise);
  std::string String(const char* field, const std::string& otherwise);
  std::vector<std::string> StringOrList(const char* field, size_t count_max, size_t bytes_max);
  std::vector<TokenId> TokenIds(const char* field, int64_t vocab, size_t count_max);
  std::map<TokenId, double> TokenBias(const char* field, int64_t vocab, NumberRange range);
  std::vector<PromptInput> Prompts(const char* field, int64_t vocab, size_t count_max);
  // `messages` as the chat template takes them, in JSON, keys in their order: text parts joined by
  // line breaks, arguments of tool calls as objects, no empty list of calls.
  std::string Messages(const char* field);
  // The object under `field` as JSON with `extra` (members without braces) put last; "{…}" in any
  // case.
  std::string ObjectWith(const char* field, const std::string& extra);
  // Whether the field is absent, null, or an object; else it fails.
  bool IsObject(const char* field);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::optional<ApiError> error_;
};

}  // namespace sixfold::gateway
