// Typed reading of a flat set of named fields (config.json or GGUF metadata of one architecture), which remembers what
// was read: what is left over is either known to be neutral, known to change the arithmetic, or reported as unknown.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace sixfold {

struct FieldNull {};
struct FieldOther { std::string type; };  // "object", "array of objects": nothing reads it as a value
using FieldValue = std::variant<FieldNull, bool, int64_t, double, std::string, std::vector<int64_t>,
                                std::vector<std::string>, FieldOther>;

// Keys of nested objects are joined by dots: "rope_parameters.factor". Copyable value; not thread-safe.
class Fields {
 public:
  Fields(std::string source, std::map<std::string, FieldValue> values)
      : source_(std::move(source)), values_(std::move(values)) {}

  const std::string& source() const { return source_; }
  // Present and not null.
  bool Has(std::string_view key) const;
  bool HasKey(std::string_view key) const;   // present, maybe null
  bool HasPrefix(std::string_view prefix) const;

  // nullopt: absent or null. Errors: wrong type or out of [min, max]; they name file, key, expected and found.
  Result<std::optional<int64_t>> Int(std::string_view key, int64_t min, int64_t max);
  Result<std::optional<double>> Number(std::string_view key, double min, double max);
  Result<std::optional<bool>> Bool(std::string_view key);
  Result<std::optional<std::string>> String(std::string_view key);
  Result<std::optional<std::vector<int64_t>>> Ints(std::string_view key, size_t max_size);
  Result<std::optional<std::vector<std::string>>> Strings(std::string_view key, size_t max_size);

  // The same with a default, or "required" when there is none.
  Status ReadInt(std::string_view key, std::optional<int64_t> fallback, int64_t min, int64_t max, int64_t* out);
  Status ReadInt32(std::string_view key, std::optional<int> fallback, int min, int max, int* out);
  Status ReadNumber(std::string_view key, std::optional<double> fallback, double min, double max, double* out);
  Status ReadBool(std::string_view key, bool fallback, bool* out);

  void MarkUsed(std::string_view key) { used_.emplace(key); }
  std::vector<std::string> Unused() const;
  const std::map<std::string, FieldValue>& values() const { return values_; }

  Status Wrong(std::string_view key, const std::string& expected) const;

 private:
  const FieldValue* Find(std::string_view key) const;

  std::string source_;
  std::map<std::string, FieldValue> values_;
  std::set<std::string, std::less<>> used_;
};

std::string Describe(const FieldValue& value);

}  // namespace sixfold
