// What the three sources say, before any value is checked. Private to options.
#pragma once

#include <string>
#include <vector>

#include "apps/options.h"

namespace sixfold::apps {

// One setting as a source gives it. `values` are as typed; kIntegers may hold commas.
struct RawSetting {
  const OptionSpec* spec = nullptr;
  std::vector<std::string> values;
  Origin origin;
};

struct ParsedArguments {
  Action action = Action::kRunCommand;
  std::vector<RawSetting> settings;  // at most one an option: the last one wins, kTexts gather
  std::vector<std::string> positionals;
};

Result<ParsedArguments> ParseArguments(CommandId command,
                                       const std::vector<std::string>& arguments);
struct ParsedEnvironment {
  std::vector<RawSetting> settings;
  std::vector<std::string> passed_over;  // names, sorted
};
// SIXFOLD_ variables only; others are none of our business. Those that Kubernetes and Docker make
// for a service of that name are passed over; any other that is no setting is kInvalidArgument.
Result<ParsedEnvironment> ParseEnvironment(const std::vector<std::string>& environment);
// Keys at the top of the file, and those of the table named after the command, which win.
Result<std::vector<RawSetting>> ParseConfigFile(const std::string& text, const std::string& file,
                                                std::string_view command_name);

// The parts of the table that `sixfold trace` and `sixfold bytes` have alone.
std::vector<OptionSpec> TraceOptions();
std::vector<OptionSpec> BytesOptions();
// The commands that run a model on ranks, or tell about it.
constexpr CommandSet LaidOutCommands() {
  using enum CommandId;
  return Commands(kRun, kServe, kGenerate, kLogits, kPerplexity, kLayout, kVerify, kTrace);
}

// How a model is cut over ranks, and what `layout` and `verify` have alone.
std::vector<OptionSpec> LayoutOptions();

std::string_view CommandName(CommandId command);
// Every spelling of every option that `commands` have, with dashes for `flags`.
std::vector<std::string> OptionSpellings(CommandSet commands);

}  // namespace sixfold::apps
