// The program: picks the command, resolves its settings, maps what comes back to an exit code.
// 0 done, 2 usage, 3 bad input file, 4 not enough memory, 1 anything else; never a signal of our
// own making.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <thread>

#include "apps/build_info.h"
#include "apps/commands.h"
#include "apps/loading.h"
#include "apps/log.h"
#include "apps/memory_table.h"
#include "base/nearest.h"
#include "apps/output.h"

namespace sixfold::apps {
namespace {

constexpr int kExitError = 1, kExitUsage = 2, kExitFile = 3, kExitMemory = 4;
constexpr size_t kConfigBytesMax = 1 << 20;
// How long the others leave the leader to tell of a failure; MpiWorld::Kill leaves it some more to answer clients.
constexpr std::chrono::seconds kLeaderSpeaks{3};

int ExitCode(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
    case StatusCode::kCancelled: return 0;  // the reader of stdout has seen enough
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kContextLength: return kExitUsage;
    case StatusCode::kInvalidFile: return kExitFile;
    case StatusCode::kOutOfMemory: return kExitMemory;
    default: return kExitError;
  }
}

int Fail(const std::string& where, const Status& status) {
  if (!status.ok() && status.code() != StatusCode::kCancelled)
    Remark(where + ": " + status.message());
  return ExitCode(status);
}

// A line of a command that knows its options: with `serve --log-format json` all lines are JSON.
void Tell(const Options& options, LogLevel level, const std::string& where,
          const std::string& message) {
  const bool serving = options.command() == CommandId::kServe;
  const LogOptions log = serving ? LogOptionsFrom(options) : LogOptions{};
  if (log.format == LogFormat::kText) return Remark(where + ": " + message);
  WriteLogLine({.format = LogFormat::kJson},
               {.level = level, .event = level == LogLevel::kError ? "error" : "remark", .message = message});
}

int Fail(const std::string& where, const Options& options, const Status& status) {
  if (!status.ok() && status.code() != StatusCode::kCancelled)
    Tell(options, LogLevel::kError, where, status.message());
  return ExitCode(status);
}

std::string GeneralHelp() {
  std::string text =
      "Sixfold serves language models.\n\n"
      "usage: sixfold COMMAND [MODEL] [OPTION…]\n\n"
      "commands:\n";
  for (const CommandInfo& command : CommandTable()) {
    text += "  " + std::string(command.name) + std::string(13 - command.name.size(), ' ') +
            std::string(command.summary) + "\n";
  }
  return text +
         "\nMODEL is a Hugging Face folder or a .gguf file. `sixfold help COMMAND` tells the "
         "rest;\n"
         "`sixfold --version` prints the version and the build. Every option is also an\n"
         "environment variable (--max-model-len is SIXFOLD_MAX_MODEL_LEN) and a key of the TOML\n"
         "file given with --config.\n"
         "Exit codes: 0 done, 2 usage, 3 bad input file, 4 not enough memory, 1 anything else.\n";
}

std::string CommandHelp(const CommandInfo& command) {
  std::string usage = "usage: sixfold " + std::string(command.name);
  if (!command.shape.text.empty()) usage += " " + std::string(command.shape.text);
  return usage + " [OPTION…]\n\nsixfold " + std::string(command.name) + ": " +
         std::string(command.summary) + ".\n" + Wrapped(command.about) + "\nExamples:\n" +
         std::string(command.examples) + "\n" + OptionHelp(command.id);
}

std::vector<std::string> Environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    entries.emplace_back(*entry);
  return entries;
}

// The plan of a command that could run, instead of the run.
bool IsDryRun(const Options& options) {
  switch (options.command()) {
    case CommandId::kRun:
    case CommandId::kServe:
    case CommandId::kGenerate:
    case CommandId::kLogits:
    case CommandId::kPerplexity: return options.Flag("dry-run");
    default: return false;
  }
}

Status Run(const Options& options, const Launch& launch) {
  SF_RETURN_IF_ERROR(CheckLinks(options, launch));
  if (IsDryRun(options)) return RunDryRun(options, launch);
  switch (options.command()) {
    case CommandId::kRun: return RunChat(options, launch);
    case CommandId::kServe: return RunServe(options, launch);
    case CommandId::kInspect: return RunInspect(options);
    case CommandId::kDoctor: return RunDoctor(options);
    case CommandId::kGenerate: return RunGenerate(options, launch);
    case CommandId::kLogits: return RunLogits(options, launch);
    case CommandId::kTokenize: return RunTokenize(options);
    case CommandId::kDetokenize: return RunDetokenize(options);
    case CommandId::kRender: return RunRender(options);
    case CommandId::kDump: return RunDump(options);
    case CommandId::kPerplexity: return RunPerplexity(options, launch);
    case CommandId::kByteFormulas: return RunBytes(options);
    case CommandId::kLayout: return RunLayout(options);
    case CommandId::kVerify: return RunVerify(options, launch);
    case CommandId::kTrace: return RunTrace(options, launch);
  }
  return Internal("a command without code");
}

// Rank 0 of several processes: what it says is the answer, and all end with it.
int Lead(const std::string& where, const Options& options, const Launch& launch) {
  const Status status = Run(options, launch);
  const Status failed = launch.mpi->transport().Failed();
  const int code = Fail(where, options, status.ok() ? failed : status);
  // Before the others have heard of anything, or after a rank is gone, only this ends them.
  if (!status.ok() || !failed.ok()) launch.mpi->Kill(code == 0 ? kExitError : code);
  const Status ended = launch.mpi->Finalize();
  return Fail(where, options, ended);
}

// A rank above 0. The leader reports what goes wrong, as long as it can, and ends all ranks before this one has to.
int Follow(const std::string& where, const Options& options, const Launch& launch) {
  // Who ends a server signals all ranks at once (srun, or Ctrl-C): the leader drains with them and then dismisses them.
  if (options.command() == CommandId::kServe) {
    std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGINT, SIG_IGN);
  }
  Status status = CheckLinks(options, launch);
  if (!status.ok()) {
    // The leader says so.
  } else if (options.command() == CommandId::kVerify) {
    status = FollowVerify(options, launch);
  } else if (options.command() == CommandId::kTrace) {
    status = FollowTrace(options, launch);
  } else if (!IsDryRun(options)) {
    status = RunFollower(options, launch);
  }
  if (status.ok()) status = launch.mpi->Finalize();
  if (status.ok()) return 0;
  const std::string rank = fmt::format("rank {}", launch.mpi->rank());
  const bool named = status.message().rfind(rank + " ", 0) == 0;
  const std::string message = (named ? "" : rank + ": ") + status.message();
  std::this_thread::sleep_for(kLeaderSpeaks);
  // Still here: the leader, which was told, cannot speak. What came from another rank that one tells.
  if (status.code() != StatusCode::kUnavailable) Tell(options, LogLevel::kError, where, message);
  launch.mpi->Kill(ExitCode(status));
}

void RemarkPassedOver(const std::string& where, const Resolved& resolved) {
  if (!resolved.passed_over.empty())
    Tell(resolved.options, LogLevel::kWarning, where, PassedOverText(resolved.passed_over));
}

int RunCommand(const CommandInfo& command, std::vector<std::string> arguments) {
  const std::string where = "sixfold " + std::string(command.name);
  const OptionSources sources{std::move(arguments), Environment(),
                              [](const std::filesystem::path& path) {
                                return ReadTextFile(path.string(), kConfigBytesMax);
                              }};
  const Result<Resolved> resolved = ResolveOptions(command.id, command.shape, sources);
  if (!resolved.ok()) return Fail(where, resolved.status());
  switch (resolved->action) {
    case Action::kHelp: return Fail(where, Print(CommandHelp(command)));
    case Action::kPrintConfig:
      RemarkPassedOver(where, *resolved);
      return Fail(where, Print(PrintConfig(resolved->options, command.name)));
    case Action::kRunCommand: break;
  }
  const Result<Launch> launch = JoinLaunch(resolved->options);
  if (!launch.ok()) return Fail(where, resolved->options, launch.status());
  if (!launch->follower()) RemarkPassedOver(where, *resolved);
  if (launch->mpi == nullptr) return Fail(where, resolved->options, Run(resolved->options, *launch));
  return launch->follower() ? Follow(where, resolved->options, *launch)
                            : Lead(where, resolved->options, *launch);
}

// `sixfold help serve` is `sixfold serve --help`.
int HelpOf(const std::vector<std::string>& words) {
  const std::string& name = words.front();
  if (words.size() > 1)
    return Fail("sixfold help", InvalidArgument("unexpected argument '" + words[1] + "'; usage: sixfold help [COMMAND]"));
  if (name == "--help" || name == "-h" || name == "help") return Fail("sixfold", Print(GeneralHelp()));
  std::vector<std::string> names;
  for (const CommandInfo& command : CommandTable()) {
    if (command.name == name) return Fail("sixfold help", Print(CommandHelp(command)));
    names.emplace_back(command.name);
  }
  return Fail("sixfold help", InvalidArgument("unknown command '" + name + "'" + DidYouMean(name, names) + "; see sixfold --help"));
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    Remark(GeneralHelp());
    return kExitUsage;
  }
  const std::string& name = arguments.front();
  const bool help = name == "help";
  if (name == "--help" || name == "-h" || (help && arguments.size() == 1))
    return Fail("sixfold", Print(GeneralHelp()));
  if (help) return HelpOf({arguments.begin() + 1, arguments.end()});
  if (name == "--version" || name == "-V")
    return Fail("sixfold", Print(VersionText()));
  std::vector<std::string> names;
  for (const CommandInfo& command : CommandTable()) {
    if (command.name == name) return RunCommand(command, {arguments.begin() + 1, arguments.end()});
    names.emplace_back(command.name);
  }
  const bool is_option = name.rfind('-', 0) == 0;
  return Fail(
      "sixfold",
      InvalidArgument((is_option ? "a command must come first, got '" : "unknown command '") +
                      name + "'" + DidYouMean(name, names) + "; see sixfold --help"));
}

void Say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

// An exception that no one caught, in whatever thread.
[[noreturn]] void OnTerminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    Say("sixfold: out of memory\n");
    ::_exit(kExitMemory);
  } catch (const std::exception& error) {
    Say("sixfold: bug: ");
    Say(error.what());
    Say("\n");
  } catch (...) {
    Say("sixfold: bug: unknown exception\n");
  }
  ::_exit(kExitError);
}

// A program that was started without one of its three descriptors would give the number to the next
// file or connection, and write its words there. What stands in for it can be neither read nor written.
void FillDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      [[maybe_unused]] const int opened = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void PrepareProcess() {
  FillDescriptors();
  std::set_terminate(OnTerminate);
  std::signal(SIGPIPE, SIG_IGN);
  // A failed CHECK has said what is wrong; the exit code must be ours. (std::signal: only _exit
  // runs in it.)
  std::signal(SIGABRT, [](int) { ::_exit(kExitError); });
  // The one way in which a checked file can still fail: another process shortened it while it was
  // mapped.
  std::signal(SIGBUS, [](int) {
    Say("sixfold: a mapped file became shorter, or its disk failed, while it was read\n");
    ::_exit(kExitFile);
  });
}

}  // namespace
}  // namespace sixfold::apps

int main(int argc, char** argv) {
  sixfold::apps::PrepareProcess();
  try {
    return sixfold::apps::Main({argv + 1, argv + argc});
  } catch (const std::bad_alloc&) {
    sixfold::apps::Say("sixfold: out of memory\n");
    return sixfold::apps::kExitMemory;
  } catch (const std::exception& error) {
    sixfold::apps::Remark(std::string("sixfold: bug: ") + error.what());
    return sixfold::apps::kExitError;
  }
}
