#include "model/arch/fields.h"

#include <cmath>

#include <fmt/format.h>

namespace sixfold {

std::string Describe(const FieldValue& value) {
  struct Visitor {
    std::string operator()(FieldNull) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t i) const { return fmt::format("{}", i); }
    std::string operator()(double d) const { return fmt::format("{}", d); }
    std::string operator()(const std::string& s) const { return fmt::format("\"{}\"", s.substr(0, 80)); }
    std::string operator()(const std::vector<int64_t>& v) const { return fmt::format("{} integers", v.size()); }
    std::string operator()(const std::vector<std::string>& v) const { return fmt::format("{} strings", v.size()); }
    std::string operator()(const FieldOther& o) const { return o.type; }
  };
  return std::visit(Visitor{}, value);
}

const FieldValue* Fields::Find(std::string_view key) const {
  const auto it = values_.find(std::string(key));
  return it == values_.end() ? nullptr : &it->second;
}

bool Fields::HasKey(std::string_view key) const { return Find(key) != nullptr; }

bool Fields::Has(std::string_view key) const {
  const FieldValue* v = Find(key);
  return v != nullptr && !std::holds_alternative<FieldNull>(*v);
}

bool Fields::HasPrefix(std::string_view prefix) const {
  const auto it = values_.lower_bound(std::string(prefix));
  return it != values_.end() && it->first.starts_with(prefix);
}

Status Fields::Wrong(std::string_view key, const std::string& expected) const {
  const FieldValue* v = Find(key);
  return InvalidFile(fmt::format("{}: field '{}' must be {}, got {}", source_, key, expected,
                                 v == nullptr ? "nothing" : Describe(*v)));
}

Result<std::optional<int64_t>> Fields::Int(std::string_view key, int64_t min, int64_t max) {
  MarkUsed(key);
  if (!Has(key)) return std::optional<int64_t>();
  const FieldValue& v = *Find(key);
  std::optional<int64_t> value;
  if (const auto* i = std::get_if<int64_t>(&v)) value = *i;
  // 1e6 and 4096.0 are integers that happen to be written as floats.
  if (const auto* d = std::get_if<double>(&v); d != nullptr && std::abs(*d) < 9e15 && *d == std::floor(*d)) {
    value = static_cast<int64_t>(*d);
  }
  if (!value || *value < min || *value > max) {
    return Wrong(key, fmt::format("an integer from {} to {}", min, max));
  }
  return value;
}

Result<std::optional<double>> Fields::Number(std::string_view key, double min, double max) {
  MarkUsed(key);
  if (!Has(key)) return std::optional<double>();
  const FieldValue& v = *Find(key);
  std::optional<double> value;
  if (const auto* i = std::get_if<int64_t>(&v)) value = static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&v)) value = *d;
  if (!value || !(*value >= min && *value <= max)) {
    return Wrong(key, fmt::format("a number from {} to {}", min, max));
  }
  return value;
}

Result<std::optional<bool>> Fields::Bool(std::string_view key) {
  MarkUsed(key);
  if (!Has(key)) return std::optional<bool>();
  if (const auto* b = std::get_if<bool>(Find(key))) return std::optional<bool>(*b);
  return Wrong(key, "true or false");
}

Result<std::optional<std::string>> Fields::String(std::string_view key) {
  MarkUsed(key);
  if (!Has(key)) return std::optional<std::string>();
  if (const auto* s = std::get_if<std::string>(Find(key))) return std::optional<std::string>(*s);
  return Wrong(key, "a string");
}

Result<std::optional<std::vector<int64_t>>> Fields::Ints(std::string_view key, size_t max_size) {
  MarkUsed(key);
  if (!Has(key)) return std::optional<std::vector<int64_t>>();
  const auto* v = std::get_if<std::vector<int64_t>>(Find(key));
  if (v == nullptr || v->size() > max_size) return Wrong(key, fmt::format("a list of at most {} integers", max_size));
  return std::optional(*v);
}

Result<std::optional<std::vector<std::string>>> Fields::Strings(std::string_view key, size_t max_size) {
  MarkUsed(key);
  if (!Has(key)) return std::optional<std::vector<std::string>>();
  const auto* v = std::get_if<std::vector<std::string>>(Find(key));
  if (v == nullptr || v->size() > max_size) return Wrong(key, fmt::format("a list of at most {} strings", max_size));
  return std::optional(*v);
}

Status Fields::ReadInt(std::string_view key, std::optional<int64_t> fallback, int64_t min, int64_t max, int64_t* out) {
  SF_ASSIGN_OR_RETURN(const auto value, Int(key, min, max));
  if (!value && !fallback) return Wrong(key, fmt::format("an integer from {} to {}", min, max));
  *out = value ? *value : *fallback;
  return OkStatus();
}

Status Fields::ReadInt32(std::string_view key, std::optional<int> fallback, int min, int max, int* out) {
  int64_t wide = 0;
  SF_RETURN_IF_ERROR(ReadInt(key, fallback ? std::optional<int64_t>(*fallback) : std::nullopt, min, max, &wide));
  *out = static_cast<int>(wide);
  return OkStatus();
}

Status Fields::ReadNumber(std::string_view key, std::optional<double> fallback, double min, double max, double* out) {
  SF_ASSIGN_OR_RETURN(const auto value, Number(key, min, max));
  if (!value && !fallback) return Wrong(key, fmt::format("a number from {} to {}", min, max));
  *out = value ? *value : *fallback;
  return OkStatus();
}

Status Fields::ReadBool(std::string_view key, bool fallback, bool* out) {
  SF_ASSIGN_OR_RETURN(const auto value, Bool(key));
  *out = value.value_or(fallback);
  return OkStatus();
}

std::vector<std::string> Fields::Unused() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : values_) {
    if (!used_.contains(key)) out.push_back(key);
  }
  return out;
}

}  // namespace sixfold
