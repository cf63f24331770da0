// Puts the sources together: flag over environment over file over default.
#include <algorithm>

#include "apps/option_sources.h"
#include "base/check.h"

namespace sixfold::apps {
namespace {

// "1,2,3" and "1, 2,3" as three values; empty text as none.
std::vector<std::string> SplitNumbers(const std::vector<std::string>& values) {
  std::vector<std::string> numbers;
  for (const std::string& text : values) {
    if (text.find_first_not_of(" \t\n") == std::string::npos) continue;
    size_t begin = 0;
    while (begin <= text.size()) {
      const size_t comma = std::min(text.find(',', begin), text.size());
      const size_t first = text.find_first_not_of(" \t\n", begin);
      const size_t last = text.find_last_not_of(" \t\n", comma - 1);
      numbers.push_back(
          first < comma && last != std::string::npos ? text.substr(first, last - first + 1) : "");
      begin = comma + 1;
    }
  }
  return numbers;
}

// The names in "a,b" and "a, b"; an empty one is kept, to be refused.
std::vector<std::string> SplitNames(const std::vector<std::string>& values) {
  std::vector<std::string> names;
  for (const std::string& text : values) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t comma = std::min(text.find(',', begin), text.size());
      const std::string piece = text.substr(begin, comma - begin);
      const size_t first = piece.find_first_not_of(" \t\n"), last = piece.find_last_not_of(" \t\n");
      std::string name = first == std::string::npos ? "" : piece.substr(first, last - first + 1);
      if (name.empty() || std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
      begin = comma + 1;
    }
  }
  return names;
}

std::vector<std::string> SplitValues(const RawSetting& raw) {
  if (raw.spec->type == OptionType::kIntegers) return SplitNumbers(raw.values);
  return raw.spec->many ? SplitNames(raw.values) : raw.values;
}

std::string Label(const RawSetting& raw) {
  if (raw.origin.kind == Origin::Kind::kFile)
    return raw.origin.name + ": " + std::string(raw.spec->name);
  return raw.origin.name;
}

Result<Setting> Check(const RawSetting& raw) {
  Setting setting{{}, raw.origin};
  for (const std::string& text : SplitValues(raw)) {
    if (raw.spec->many && text.empty()) return InvalidArgument(Label(raw) + ": an empty name");
    Result<std::string> value = CanonicalValue(*raw.spec, text);
    if (!value.ok()) return value.status().WithContext(Label(raw));
    setting.values.push_back(*std::move(value));
  }
  return setting;
}

Setting Default(const OptionSpec& spec) {
  const bool list = spec.type == OptionType::kTexts || spec.type == OptionType::kIntegers;
  return {list ? std::vector<std::string>{} : std::vector<std::string>{std::string(spec.fallback)},
          {}};
}

}  // namespace

std::vector<std::string> OptionSpellings(CommandSet commands) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : OptionTable()) {
    if ((spec.commands & commands) == 0) continue;
    names.emplace_back(spec.name);
    for (const std::string_view alias : spec.aliases) names.emplace_back(alias);
  }
  // A name that means several things is there once.
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

class OptionResolver {
 public:
  OptionResolver(CommandId command, const OptionSources& sources) : sources_(sources) {
    options_.command_ = command;
  }

  Result<Resolved> Resolve(const ArgumentShape& shape) {
    SF_ASSIGN_OR_RETURN(ParsedArguments arguments,
                        ParseArguments(options_.command_, sources_.arguments));
    if (arguments.action == Action::kHelp) return Resolved{.action = Action::kHelp};
    SF_ASSIGN_OR_RETURN(ParsedEnvironment parsed, ParseEnvironment(sources_.environment));
    const std::vector<RawSetting>& environment = parsed.settings;
    for (const OptionSpec& spec : OptionTable())
      options_.settings_.emplace(spec.name, Default(*FindOption(spec.name, Commands(options_.command_))));
    // Lowest first; the config file is found by what the two above it say.
    SF_RETURN_IF_ERROR(Apply(environment));
    SF_RETURN_IF_ERROR(Apply(arguments.settings));
    const std::string config = options_.Text("config");
    if (!config.empty()) {
      SF_ASSIGN_OR_RETURN(const std::string text, sources_.read_file(config));
      SF_ASSIGN_OR_RETURN(const auto file,
                          ParseConfigFile(text, config, CommandName(options_.command_)));
      SF_RETURN_IF_ERROR(Apply(file));
      SF_RETURN_IF_ERROR(Apply(environment));
      SF_RETURN_IF_ERROR(Apply(arguments.settings));
    }
    SF_RETURN_IF_ERROR(Place(shape, arguments));
    return Resolved{.action = arguments.action,
                    .options = std::move(options_),
                    .passed_over = std::move(parsed.passed_over)};
  }

 private:
  Status Apply(const std::vector<RawSetting>& settings) {
    for (RawSetting raw : settings) {
      raw.spec = FindOption(raw.spec->name, Commands(options_.command_));
      SF_ASSIGN_OR_RETURN(options_.settings_.find(raw.spec->name)->second, Check(raw));
    }
    return OkStatus();
  }

  Status Place(const ArgumentShape& shape, ParsedArguments& arguments) {
    std::vector<std::string>& positionals = arguments.positionals;
    const bool model_by_flag =
        !shape.takes_model || options_.Get("model").origin.kind == Origin::Kind::kFlag;
    if (!model_by_flag && static_cast<int>(positionals.size()) > shape.min) {
      options_.settings_.find("model")->second = {{positionals.front()},
                                                  {Origin::Kind::kFlag, "argument MODEL"}};
      positionals.erase(positionals.begin());
    }
    const int count = static_cast<int>(positionals.size());
    const std::string usage = "; usage: sixfold " + std::string(CommandName(options_.command_)) +
                              (shape.text.empty() ? "" : " " + std::string(shape.text));
    if (count > shape.max) {
      const bool prompt = shape.text.find("PROMPT]") != std::string_view::npos;
      return InvalidArgument("unexpected argument '" + positionals[shape.max] + "'" + usage +
                             (prompt ? "; a prompt of several words needs quotes: 'Why is the sky blue?'" : ""));
    }
    if (count < shape.min && arguments.action == Action::kRunCommand) {
      return InvalidArgument("an argument is missing" + usage);
    }
    options_.arguments_ = std::move(positionals);
    return OkStatus();
  }

  const OptionSources& sources_;
  Options options_;
};

Result<Resolved> ResolveOptions(CommandId command, const ArgumentShape& shape,
                                const OptionSources& sources) {
  return OptionResolver(command, sources).Resolve(shape);
}

}  // namespace sixfold::apps
