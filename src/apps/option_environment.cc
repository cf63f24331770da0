// Settings from SIXFOLD_ variables, apart from those that others make by the same prefix.
#include <algorithm>
#include <cctype>

#include "apps/option_sources.h"
#include "base/nearest.h"

namespace sixfold::apps {
namespace {

constexpr std::string_view kPrefix = "SIXFOLD_";
// Variables of this repository's own scripts and tests, which hand them on to the program.
constexpr std::string_view kTestPrefix = "SIXFOLD_TEST_";
constexpr std::string_view kScriptVariables[] = {"SIXFOLD_BIN", "SIXFOLD_FUZZ_SECONDS"};

struct Variable {
  std::string name, value;
};

// Those with our prefix and a value: set to nothing is not set.
std::vector<Variable> OurVariables(const std::vector<std::string>& environment) {
  std::vector<Variable> ours;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals + 1 == entry.size()) continue;
    std::string name = entry.substr(0, equals);
    if (name.rfind(kPrefix, 0) != 0 || name.rfind(kTestPrefix, 0) == 0) continue;
    if (std::find(std::begin(kScriptVariables), std::end(kScriptVariables), name) !=
        std::end(kScriptVariables))
      continue;
    ours.push_back({std::move(name), entry.substr(equals + 1)});
  }
  return ours;
}

// "tcp://10.0.0.1:80": where a service listens. No setting has such a value.
bool IsServiceUrl(const std::string& value) {
  return value.rfind("tcp://", 0) == 0 || value.rfind("udp://", 0) == 0 ||
         value.rfind("sctp://", 0) == 0;
}

std::vector<std::string_view> Words(std::string_view name) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('_', begin), name.size());
    words.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

bool IsNumber(std::string_view word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

bool IsProtocol(std::string_view word) { return word == "TCP" || word == "UDP" || word == "SCTP"; }

// Whether <stem>_PORT says where a container listens.
bool HasServiceUrl(std::string_view stem, const std::vector<Variable>& all) {
  const std::string port = std::string(stem) + "_PORT";
  return std::any_of(all.begin(), all.end(), [&](const Variable& other) {
    return other.name == port && IsServiceUrl(other.value);
  });
}

// Kubernetes tells every container of a namespace about each service in it, and Docker (--link)
// about each linked container, in variables that begin with the service's name: for `sixfold` and
// `sixfold-chat` with our prefix. Their forms:
// https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables and
// https://docs.docker.com/engine/network/links/#environment-variables
bool IsOfService(const Variable& variable, const std::vector<Variable>& all) {
  const std::string_view name = variable.name;
  const std::vector<std::string_view> words = Words(name);
  const size_t count = words.size();
  for (size_t i = 1; i + 1 < count; ++i) {
    if (words[i] == "SERVICE" && words[i + 1] == "PORT") return true;
    if (words[i] == "SERVICE" && words[i + 1] == "HOST" && i + 2 == count) return true;
    const bool has_protocol = i + 2 < count && IsProtocol(words[i + 2]);
    if (words[i] == "PORT" && IsNumber(words[i + 1]) && has_protocol) return true;
    // A less telling name: only beside the same container's port.
    const std::string_view stem =
        name.substr(0, static_cast<size_t>(words[i].data() - name.data()) - 1);
    if (words[i] == "ENV" && HasServiceUrl(stem, all)) return true;
  }
  if (words.back() == "PORT") return IsServiceUrl(variable.value);
  return words.back() == "NAME" &&
         HasServiceUrl(name.substr(0, name.size() - std::string_view("_NAME").size()), all);
}

Result<const OptionSpec*> SpecOf(const std::string& name) {
  std::string option;
  for (const char c : name.substr(kPrefix.size())) {
    option += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const OptionSpec* spec = option.empty() || option[0] == '-' ? nullptr : FindOption(option);
  if (spec != nullptr && name == EnvironmentName(option)) return spec;
  std::vector<std::string> known;
  for (const std::string& spelling : OptionSpellings(~CommandSet{0})) {
    if (spelling[0] != '-') known.push_back(EnvironmentName(spelling));
  }
  return InvalidArgument("unknown environment variable " + name + DidYouMean(name, known));
}

}  // namespace

Result<ParsedEnvironment> ParseEnvironment(const std::vector<std::string>& environment) {
  ParsedEnvironment parsed;
  const std::vector<Variable> variables = OurVariables(environment);
  for (const Variable& variable : variables) {
    const Result<const OptionSpec*> spec = SpecOf(variable.name);
    const bool is_setting =
        spec.ok() && !(variable.name == EnvironmentName("port") && IsServiceUrl(variable.value));
    if (!is_setting && IsOfService(variable, variables)) {
      parsed.passed_over.push_back(variable.name);
      continue;
    }
    SF_RETURN_IF_ERROR(spec.status());
    for (const RawSetting& other : parsed.settings) {
      if (other.spec == *spec) {
        return InvalidArgument(variable.name + " and " + other.origin.name +
                               " are the same setting; unset one of them");
      }
    }
    parsed.settings.push_back(
        {*spec, {variable.value}, {Origin::Kind::kEnvironment, variable.name}});
  }
  std::sort(parsed.passed_over.begin(), parsed.passed_over.end());
  return parsed;
}

std::string PassedOverText(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return "passed over " + list +
         ": Kubernetes or Docker sets such variables for a service whose name begins with "
         "'sixfold'; they are no settings (enableServiceLinks: false in the pod's spec, or another "
         "name of the service, keeps them out)";
}

}  // namespace sixfold::apps
