// From the text of a value to its canonical text, and from there to numbers.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "apps/options.h"
#include "apps/text_input.h"
#include "base/check.h"
#include "base/nearest.h"

namespace sixfold::apps {
namespace {

// The whole of `text` as a number, nullopt for anything else.
template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  if (text.size() > 1 && text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string NumberText(double value) {
  char text[64];
  const bool whole = value == std::floor(value) && std::fabs(value) < 1e18;
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%g", value);
  return text;
}

std::string RangeText(const OptionSpec& spec) {
  std::string what = "a number";
  if (spec.type == OptionType::kInteger) what = spec.power_of_two ? "a power of two" : "an integer";
  if (spec.type == OptionType::kIntegers) what = "integers such as 1,2,3, each";
  if (spec.type == OptionType::kBytes) what = "a size such as 512M or 4GiB,";
  std::string range = " from " + NumberText(spec.min) + " to " + NumberText(spec.max);
  if (spec.type == OptionType::kBytes) range += " bytes";
  if (spec.type == OptionType::kSeed) {
    what = "a 64-bit integer";
    range = " from -9223372036854775808 to 18446744073709551615";
  }
  return what + range + (spec.fallback == "auto" ? ", or auto" : "");
}

Status Refused(const OptionSpec& spec, std::string_view text) {
  return InvalidArgument("expected " + RangeText(spec) + ", got '" + std::string(text) + "'");
}

// 1,000 for k, 1,024 for K and Ki, and their powers for m, g and t; nullopt for no known unit.
std::optional<double> UnitFactor(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") return 1.0;
  constexpr std::string_view letters = "kmgt";
  const size_t power =
      letters.find(static_cast<char>(std::tolower(static_cast<unsigned char>(unit[0]))));
  if (power == std::string_view::npos) return std::nullopt;
  const std::string_view rest = unit.substr(1);
  double base = std::isupper(static_cast<unsigned char>(unit[0])) ? 1024.0 : 1000.0;
  if (rest == "B" || rest == "b") {
    base = 1000.0;
  } else if (rest == "iB" || rest == "ib" || rest == "i") {
    base = 1024.0;
  } else if (!rest.empty()) {
    return std::nullopt;
  }
  return std::pow(base, static_cast<double>(power + 1));
}

// Whether a fraction of one is dropped, as in 1.5 bytes, or makes the text no number.
enum class Fraction : uint8_t { kDropped, kRefused };

// "4096", "4k", "1.5GiB" as a whole number.
std::optional<int64_t> ParseScaled(std::string_view text, Fraction fraction) {
  if (const auto plain = ParseWhole<int64_t>(text)) return plain;
  const size_t digits = text.find_first_not_of("0123456789.");
  if (digits == 0 || digits == std::string_view::npos) return std::nullopt;
  const auto number = ParseWhole<double>(text.substr(0, digits));
  const auto factor = UnitFactor(text.substr(digits));
  if (!number || !factor || *number * *factor > 9e18) return std::nullopt;
  const double product = *number * *factor, nearest = std::round(product);
  // 1.001k is 1,001, although the product of the doubles is a little less.
  if (std::fabs(product - nearest) <= 1e-9 * nearest) return static_cast<int64_t>(nearest);
  if (fraction == Fraction::kRefused) return std::nullopt;
  return static_cast<int64_t>(product);
}

Result<std::string> CanonicalInteger(const OptionSpec& spec, std::string_view text) {
  const auto value =
      ParseScaled(text, spec.type == OptionType::kBytes ? Fraction::kDropped : Fraction::kRefused);
  if (!value || static_cast<double>(*value) < spec.min || static_cast<double>(*value) > spec.max) {
    return Refused(spec, text);
  }
  if (spec.power_of_two && (*value & (*value - 1)) != 0) return Refused(spec, text);
  return std::to_string(*value);
}

Result<std::string> CanonicalSeed(const OptionSpec& spec, std::string_view text) {
  if (const auto value = ParseScaled(text, Fraction::kRefused)) return std::to_string(*value);
  if (const auto value = ParseWhole<uint64_t>(text)) return std::to_string(*value);
  return Refused(spec, text);
}

Result<std::string> CanonicalText(const OptionSpec& spec, std::string_view text) {
  if (spec.utf8) SF_RETURN_IF_ERROR(CheckUtf8(text));
  return std::string(text);
}

Result<std::string> CanonicalReal(const OptionSpec& spec, std::string_view text) {
  const auto value = ParseWhole<double>(text);
  if (!value || !std::isfinite(*value) || *value < spec.min || *value > spec.max)
    return Refused(spec, text);
  return std::string(text[0] == '+' ? text.substr(1) : text);
}

Result<std::string> CanonicalFlag(std::string_view text) {
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (text == yes) return std::string("true");
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (text == no) return std::string("false");
  }
  return InvalidArgument("expected true or false, got '" + std::string(text) + "'");
}

Result<std::string> CanonicalChoice(const OptionSpec& spec, std::string_view text) {
  std::string known;
  std::vector<std::string> names;
  for (const std::string_view choice : spec.choices) {
    const size_t equals = choice.find('=');
    if (text == choice.substr(0, equals)) {
      return std::string(equals == std::string_view::npos ? choice : choice.substr(equals + 1));
    }
    if (equals == std::string_view::npos) {
      known += (known.empty() ? "" : ", ") + std::string(choice);
      names.emplace_back(choice);
    }
  }
  return InvalidArgument("expected one of " + known + ", got '" + std::string(text) + "'" +
                         DidYouMean(text, names));
}

}  // namespace

Result<std::string> CanonicalValue(const OptionSpec& spec, std::string_view text) {
  if (spec.fallback == "auto" && text == "auto") return std::string("auto");
  switch (spec.type) {
    case OptionType::kFlag: return CanonicalFlag(text);
    case OptionType::kInteger:
    case OptionType::kBytes:
    case OptionType::kIntegers: return CanonicalInteger(spec, text);
    case OptionType::kSeed: return CanonicalSeed(spec, text);
    case OptionType::kReal: return CanonicalReal(spec, text);
    case OptionType::kChoice: return CanonicalChoice(spec, text);
    case OptionType::kText:
    case OptionType::kTexts: return CanonicalText(spec, text);
  }
  return Internal("an option of no type");
}

bool Options::IsGiven(std::string_view name) const {
  return Get(name).origin.kind != Origin::Kind::kDefault;
}

const Setting& Options::Get(std::string_view name) const {
  const auto found = settings_.find(name);
  SF_CHECK(found != settings_.end());
  return found->second;
}

const Setting& Options::Typed(std::string_view name,
                              std::initializer_list<OptionType> types) const {
  const OptionSpec* spec = FindOption(name, Commands(command_));
  SF_CHECK(spec != nullptr && std::find(types.begin(), types.end(), spec->type) != types.end());
  return Get(name);
}

bool Options::Flag(std::string_view name) const {
  return Typed(name, {OptionType::kFlag}).values.front() == "true";
}

const std::string& Options::Text(std::string_view name) const {
  return Typed(name, {OptionType::kText, OptionType::kChoice}).values.front();
}

const std::vector<std::string>& Options::Texts(std::string_view name) const {
  return Typed(name, {OptionType::kTexts}).values;
}

int64_t Options::Integer(std::string_view name) const {
  const auto value = MaybeInteger(name);
  SF_CHECK(value.has_value());
  return *value;
}

std::optional<int64_t> Options::MaybeInteger(std::string_view name) const {
  return ParseWhole<int64_t>(
      Typed(name, {OptionType::kInteger, OptionType::kBytes}).values.front());
}

std::optional<uint64_t> Options::MaybeSeed(std::string_view name) const {
  const std::string& text = Typed(name, {OptionType::kSeed}).values.front();
  if (const auto value = ParseWhole<uint64_t>(text)) return value;
  if (const auto value = ParseWhole<int64_t>(text)) return static_cast<uint64_t>(*value);
  return std::nullopt;
}

std::optional<double> Options::MaybeReal(std::string_view name) const {
  return ParseWhole<double>(Typed(name, {OptionType::kReal}).values.front());
}

std::vector<int64_t> Options::Integers(std::string_view name) const {
  std::vector<int64_t> numbers;
  for (const std::string& value : Typed(name, {OptionType::kIntegers}).values) {
    const auto number = ParseWhole<int64_t>(value);
    SF_CHECK(number.has_value());
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace sixfold::apps
