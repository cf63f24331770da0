// Every setting of the program: one table, and the values that flags, environment, config file and
// defaults give it.
//
// Each setting is a flag (--max-model-len), an environment variable (SIXFOLD_MAX_MODEL_LEN) and a
// TOML key (max-model-len, at the top of the file for every command or in a table named after a
// command). Aliases work in all three, and '_' is as good as '-'. A flag wins over the environment,
// that over the file, that over the default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sixfold::apps {

enum class CommandId : uint8_t {
  kRun,
  kServe,
  kInspect,
  kDoctor,
  kGenerate,
  kLogits,
  kTokenize,
  kDetokenize,
  kRender,
  kDump,
  kPerplexity,
  kByteFormulas,
  kLayout,
  kVerify,
  kTrace,
};
inline constexpr int kCommandCount = 15;

// A set of commands, one bit each.
using CommandSet = uint32_t;
template <typename... Ids>
constexpr CommandSet Commands(Ids... ids) {
  return ((CommandSet{1} << static_cast<int>(ids)) | ...);
}

enum class OptionType : uint8_t {
  kFlag,     // --x, --no-x; true or false elsewhere
  kInteger,  // also 4k = 4,000 and 4K = 4,096
  kSeed,     // any 64 bits: -2^63 to 2^64 - 1, negative ones in two's complement
  kReal,
  kBytes,  // 512M, 4GiB, plain bytes
  kChoice,
  kText,
  kTexts,     // may be given several times
  kIntegers,  // 1,2,3
};

enum class OptionGroup : uint8_t {
  kCommand,
  kModel,
  kArithmetic,
  kLayout,
  kEngine,
  kServer,
  kSampling,
  kGeneral
};

// One row of the table. `fallback` is the default as it would be typed; "auto" is then a value of
// its own, whose meaning `auto_means` tells.
struct OptionSpec {
  std::string_view name;
  std::vector<std::string_view>
      aliases;  // "context-length"; with its dash if it has one only: "-c", "-np"
  OptionType type = OptionType::kText;
  OptionGroup group = OptionGroup::kCommand;
  CommandSet commands = 0;
  std::string_view metavar;
  std::string_view fallback;
  std::string_view auto_means;
  double min = 0, max = 0;  // of kInteger, kReal, kBytes and each of kIntegers
  bool power_of_two = false;
  std::vector<std::string_view> choices;  // "f32", or "float32=f32" for another spelling
  std::string_view help;
  bool secret = false;  // its value is never printed
  bool utf8 = false;    // text that goes into JSON or a prompt: other bytes are refused
  // kTexts: also "a,b", and several words behind one flag (vLLM's form).
  bool many = false;
};

std::span<const OptionSpec> OptionTable();
// Without dashes, '-' between words; or "-c". Two commands may mean different things by one name: the first option that one of
// `commands` has, else any of the name.
const OptionSpec* FindOption(std::string_view name_or_alias, CommandSet commands = ~CommandSet{0});
std::string EnvironmentName(std::string_view option);  // "SIXFOLD_MAX_MODEL_LEN"

// Where a value came from.
struct Origin {
  enum class Kind : uint8_t { kDefault, kFile, kEnvironment, kFlag };
  Kind kind = Kind::kDefault;
  std::string name;  // as typed: "--ctx-size", "SIXFOLD_PORT", "serve.toml:3"
};

struct Setting {
  std::vector<std::string> values;  // canonical text; more than one for kTexts and kIntegers only
  Origin origin;
};

// The values for one command. Reading a name that is not in the table, or as another type, is a
// bug. Thread rule: a value, read-only after ResolveOptions.
class Options {
 public:
  CommandId command() const { return command_; }
  // Arguments that belong to no flag, in order, without MODEL.
  const std::vector<std::string>& arguments() const { return arguments_; }

  bool IsGiven(std::string_view name) const;  // by anything but the default
  const Setting& Get(std::string_view name) const;
  bool Flag(std::string_view name) const;
  const std::string& Text(std::string_view name) const;
  const std::vector<std::string>& Texts(std::string_view name) const;
  int64_t Integer(std::string_view name) const;
  // nullopt for "auto", as of the next two.
  std::optional<int64_t> MaybeInteger(std::string_view name) const;
  std::optional<uint64_t> MaybeSeed(std::string_view name) const;
  std::optional<double> MaybeReal(std::string_view name) const;
  std::vector<int64_t> Integers(std::string_view name) const;

 private:
  friend class OptionResolver;
  const Setting& Typed(std::string_view name, std::initializer_list<OptionType> types) const;

  CommandId command_ = CommandId::kRun;
  std::vector<std::string> arguments_;
  std::map<std::string, Setting, std::less<>> settings_;
};

struct OptionSources {
  std::vector<std::string> arguments;    // behind the command's name
  std::vector<std::string> environment;  // "NAME=value"
  // Reads a config file; replaced in tests.
  std::function<Result<std::string>(const std::filesystem::path&)> read_file;
};

// Arguments of a command that belong to no flag, behind MODEL. MODEL is the first one if there are
// more than `min` and
// --model is not given; it becomes the option "model".
struct ArgumentShape {
  bool takes_model = true;
  int min = 0;
  int max = 0;
  std::string_view text;  // "MODEL TENSOR", for messages
};

// What the arguments ask for beside the command itself.
enum class Action : uint8_t { kRunCommand, kHelp, kPrintConfig };

struct Resolved {
  Action action = Action::kRunCommand;
  Options options;
  std::vector<std::string> passed_over;  // variables with our prefix that are no settings
};

// Errors are kInvalidArgument: an unknown flag, key or SIXFOLD_ variable (with the nearest name;
// those of this repository's own scripts, SIXFOLD_TEST_… and SIXFOLD_BIN, are passed over, and so
// are those of a service named sixfold, see Resolved::passed_over), a value of the wrong type or
// out of range (with the range), too few or too many arguments.
Result<Resolved> ResolveOptions(CommandId command, const ArgumentShape& shape,
                                const OptionSources& sources);

// What to tell a person about Resolved::passed_over; "" when it is empty.
std::string PassedOverText(const std::vector<std::string>& names);

// The value in its canonical text ("float32" → "f32", "4GiB" → "4294967296"), or why it is none:
// "expected …, got …"
Result<std::string> CanonicalValue(const OptionSpec& spec, std::string_view text);

// Valid TOML that gives these settings again, each with its origin in a comment.
std::string PrintConfig(const Options& options, std::string_view command_name);
// `text` with a line break wherever a word would go beyond 100 columns.
std::string Wrapped(std::string_view text);
// The options of a command, grouped, for --help; lines of at most 100 columns.
std::string OptionHelp(CommandId command);

}  // namespace sixfold::apps
