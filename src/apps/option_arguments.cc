// The command line. CLI11 takes the words apart; the table says what they may be.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/nearest.h"
#include "apps/option_sources.h"

namespace sixfold::apps {
namespace {

std::string DashesToName(std::string_view word) {
  std::string name(word);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// "--context-length", "-c".
std::string Dashed(std::string_view alias) {
  return alias[0] == '-' ? std::string(alias) : "--" + std::string(alias);
}

Status UnknownFlag(CommandId command, const std::string& flag, const OptionSpec* elsewhere) {
  if (elsewhere != nullptr) {
    return InvalidArgument(flag + " is no option of " + std::string(CommandName(command)) +
                           "; see sixfold " + std::string(CommandName(command)) + " --help");
  }
  std::vector<std::string> known;
  for (const std::string& name : OptionSpellings(CommandSet{1} << static_cast<int>(command))) {
    known.push_back(Dashed(name));
  }
  for (const char* action : {"--help", "--print-config"}) known.emplace_back(action);
  return InvalidArgument("unknown option " + flag + DidYouMean(flag, known));
}

bool Takes(const OptionSpec* spec, CommandId command) {
  return spec != nullptr && (spec->commands >> static_cast<int>(command) & 1) != 0;
}

// One word rewritten into what CLI11 reads: "_" in names, aliases longer than a letter behind one
// dash, "--x=" with nothing behind it (which CLI11 takes for "--x" alone). `typed` remembers the
// spelling for messages.
Status NormaliseWord(CommandId command, const std::string& word, std::vector<std::string>* words,
                     std::map<std::string_view, std::string>* typed) {
  const bool is_long = word.rfind("--", 0) == 0;
  const size_t equals = word.find('=');
  const std::string spelled = word.substr(0, equals);
  if (!is_long && (word.size() < 2 ||
                   (std::isalpha(static_cast<unsigned char>(word[1])) == 0 && word[1] != '?'))) {
    words->push_back(word);  // "-", or a negative number
    return OkStatus();
  }
  if (spelled == "--help" || spelled == "--print-config" || spelled == "-h" || spelled == "-?") {
    words->push_back(spelled == "-?" ? "-h" : spelled);
    return OkStatus();
  }
  const std::string name = is_long ? DashesToName(spelled.substr(2)) : spelled;
  const CommandSet own = Commands(command);
  const OptionSpec* spec = FindOption(name, own);
  if (spec == nullptr && is_long && name.rfind("no-", 0) == 0) {
    const OptionSpec* negated = FindOption(name.substr(3), own);
    if (Takes(negated, command) && negated->type == OptionType::kFlag &&
        equals == std::string::npos) {
      (*typed)[negated->name] = spelled;
      words->push_back("--" + std::string(negated->name) + "=false");
      return OkStatus();
    }
  }
  if (spec == nullptr && !is_long && word.size() > 2 &&
      Takes(FindOption(word.substr(0, 2), own), command)) {
    words->push_back(word);  // -t4
    return OkStatus();
  }
  if (!Takes(spec, command)) return UnknownFlag(command, spelled, spec);
  (*typed)[spec->name] = spelled;
  words->push_back("--" + std::string(spec->name));
  if (equals == std::string::npos) return OkStatus();
  if (spec->type == OptionType::kFlag) {
    words->back() += word.substr(equals);
  } else {
    words->push_back(word.substr(equals + 1));
  }
  return OkStatus();
}

// True when the next word is the value of this one, whatever it looks like.
bool WantsValue(CommandId command, const std::string& word) {
  if (word.size() < 2 || word[0] != '-' || word.find('=') != std::string::npos) return false;
  const OptionSpec* spec = FindOption(word[1] == '-' ? DashesToName(word.substr(2)) : word, Commands(command));
  return Takes(spec, command) && spec->type != OptionType::kFlag;
}

// The option that this word names, if it takes several values.
const OptionSpec* ManyOf(CommandId command, const std::string& word) {
  const std::string spelled = word.substr(0, word.find('='));
  if (spelled.size() < 2) return nullptr;
  const OptionSpec* spec = FindOption(spelled[1] == '-' ? DashesToName(spelled.substr(2)) : spelled, Commands(command));
  return Takes(spec, command) && spec->many ? spec : nullptr;
}

// Names that follow --served-model-name, or MODEL?
bool LooksLikeModel(const std::string& word) {
  std::error_code error;
  return word.ends_with(".gguf") || word.ends_with(".safetensors") || word.find_first_of("/.~") == 0 ||
         std::filesystem::exists(word, error);
}

// What Normalise has seen: arguments of no flag, and where in `words` a flag with several values has its last one.
struct Seen {
  bool positional = false;
  std::vector<size_t> last_of_many;
};

// The values behind the first one of an option that takes several, each with the flag of its own that CLI11 wants.
void TakeMany(const OptionSpec& spec, const std::vector<std::string>& arguments, size_t* at, std::vector<std::string>* words,
              Seen* seen) {
  bool any = false;
  while (*at + 1 < arguments.size() && !arguments[*at + 1].empty() && arguments[*at + 1][0] != '-') {
    words->push_back("--" + std::string(spec.name));
    words->push_back(arguments[++*at]);
    any = true;
  }
  if (any) seen->last_of_many.push_back(words->size() - 2);
}

// Where no MODEL was given elsewhere, a last value that looks like one is it: --served-model-name NAME MODEL.
void FreeModel(const Seen& seen, const std::map<std::string_view, std::string>& typed, std::vector<std::string>* words) {
  if (seen.positional || typed.contains("model")) return;
  for (const size_t at : seen.last_of_many) {
    if (!LooksLikeModel((*words)[at + 1])) continue;
    words->erase(words->begin() + static_cast<int64_t>(at));
    return;
  }
}

Status Normalise(CommandId command, const std::vector<std::string>& arguments,
                 std::vector<std::string>* words, std::map<std::string_view, std::string>* typed) {
  Seen seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      seen.positional = seen.positional || i + 1 < arguments.size();
      FreeModel(seen, *typed, words);
      words->insert(words->end(), arguments.begin() + static_cast<int64_t>(i), arguments.end());
      return OkStatus();
    }
    if (word.empty() || word[0] != '-') {
      seen.positional = true;
      words->push_back(word);
      continue;
    }
    SF_RETURN_IF_ERROR(NormaliseWord(command, word, words, typed));
    if (WantsValue(command, word)) {
      if (i + 1 == arguments.size()) return InvalidArgument(word + " needs a value");
      words->push_back(arguments[++i]);
    }
    if (const OptionSpec* many = ManyOf(command, word)) TakeMany(*many, arguments, &i, words, &seen);
  }
  FreeModel(seen, *typed, words);
  return OkStatus();
}

std::string CliName(const OptionSpec& spec) {
  std::string names = "--" + std::string(spec.name);
  for (const std::string_view alias : spec.aliases) {
    if (alias.size() == 2 && alias[0] == '-') names += "," + std::string(alias);
  }
  return names;
}

}  // namespace

Result<ParsedArguments> ParseArguments(CommandId command,
                                       const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  std::map<std::string_view, std::string> typed;
  SF_RETURN_IF_ERROR(Normalise(command, arguments, &words, &typed));
  ParsedArguments parsed;
  try {
    CLI::App app;
    app.set_help_flag();
    CLI::Option* help = app.add_flag("--help,-h");
    CLI::Option* print_config = app.add_flag("--print-config");
    std::vector<std::string> positionals;
    app.add_option("arguments", positionals);
    std::vector<std::pair<const OptionSpec*, CLI::Option*>> added;
    for (const OptionSpec& spec : OptionTable()) {
      if (!Takes(&spec, command)) continue;
      CLI::Option* option = spec.type == OptionType::kFlag
                                ? app.add_flag(CliName(spec))
                                : app.add_option(CliName(spec), CLI::callback_t{});
      added.emplace_back(&spec, option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
    }
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    app.parse(words);
    if (help->count() > 0)
      parsed.action = Action::kHelp;
    else if (print_config->count() > 0)
      parsed.action = Action::kPrintConfig;
    parsed.positionals = std::move(positionals);
    for (const auto& [spec, option] : added) {
      if (option->count() == 0) continue;
      std::vector<std::string> values = option->results();
      if (spec->type != OptionType::kTexts) values.erase(values.begin(), values.end() - 1);
      const auto spelled = typed.find(spec->name);
      const std::string name =
          spelled == typed.end() ? "--" + std::string(spec->name) : spelled->second;
      parsed.settings.push_back({spec, std::move(values), {Origin::Kind::kFlag, name}});
    }
  } catch (const CLI::Error& error) {
    return InvalidArgument(error.what());
  }
  return parsed;
}

}  // namespace sixfold::apps
