// sixfold run: a chat in the terminal, or one answer for a prompt.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/chat_input.h"
#include "apps/commands.h"
#include "apps/history_file.h"
#include "apps/interrupt.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/memory_table.h"
#include "apps/output.h"
#include "apps/sampling.h"
#include "apps/text_loading.h"
#include "base/plural.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr size_t kPromptBytesMax = size_t{16} << 20;

class Chat {
 public:
  struct Parts {
    const Tokenizer& tokenizer;
    Engine& engine;
    int64_t vocab;
  };
  Chat(const Options& options, const Parts& parts, SamplingParams sampling,
       InterruptWatch& interrupts)
      : options_(options),
        tokenizer_(parts.tokenizer),
        engine_(parts.engine),
        vocab_(parts.vocab),
        sampling_(std::move(sampling)),
        interrupts_(interrupts) {}

  Status SetUp() {
    SF_ASSIGN_OR_RETURN(const auto given, ChatTemplateFrom(options_));
    const std::string* own = SelectChatTemplate(tokenizer_, false);
    if (given)
      source_ = *given;
    else if (own != nullptr)
      source_ = *own;
    if (source_.empty()) Remark("(the model has no chat template: it continues your text)");
    StartOver();
    return OkStatus();
  }

  void StartOver() {
    messages_ = ordered_json::array();
    const std::string& system = options_.Text("system-prompt");
    if (!system.empty())
      messages_.push_back({{"role", "system"}, {"content", ReplaceInvalidUtf8(system)}});
  }

  // Called now and then while an answer is computed; true ends it.
  void set_meanwhile(std::function<bool()> meanwhile) { meanwhile_ = std::move(meanwhile); }

  // Streams the answer to stdout. A failure of the request leaves the chat as it was, and so does
  // an interrupt before the first token.
  Status Ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", ReplaceInvalidUtf8(text)}});
    Status answered = Answer();
    if (!answered.ok()) messages_.erase(messages_.size() - 1);
    return answered;
  }

 private:
  Result<std::vector<TokenId>> Prompt() const {
    if (source_.empty()) {
      return tokenizer_.Encode(messages_.back()["content"].get_ref<const std::string&>(),
                               AddSpecial::kYes);
    }
    ChatTemplateOptions render{.add_generation_prompt = true,
                               .kwargs_json = options_.Text("chat-template-kwargs"),
                               .special_tokens = tokenizer_.special_tokens()};
    SF_ASSIGN_OR_RETURN(const std::string rendered,
                        RenderChatTemplate(source_, messages_.dump(), render));
    return tokenizer_.Encode(rendered, AddSpecial::kNo);
  }

  Status Answer() {
    SF_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, Prompt());
    if (prompt.empty()) return InvalidArgument("the prompt is empty");
    SF_RETURN_IF_ERROR(CheckTokens({prompt.begin(), prompt.end()}, vocab_, "the prompt"));
    AnswerText answer(&tokenizer_, options_.Texts("stop"), sampling_);
    const Clock::time_point start = Clock::now();
    Status printed;
    bool interrupted = false;
    const auto stop = [&] {
      if (meanwhile_ && meanwhile_()) interrupted = true;
      if (interrupts_.Take()) interrupted = true;
      return interrupted;
    };
    const auto on_delta = [&](const Delta& delta) {
      const std::string added = answer.Add(delta);
      if (!added.empty() && printed.ok()) printed = Print(added);
      return stop() || answer.stopped() || !printed.ok() ? AfterDelta::kEndChoice
                                                         : AfterDelta::kContinue;
    };
    Request request{.prompt = std::move(prompt), .sampling = sampling_};
    const size_t prompt_tokens = request.prompt.size();
    SF_ASSIGN_OR_RETURN(const GenerateOutput output,
                        Generate(engine_, std::move(request), on_delta, {.stop = stop}));
    SF_RETURN_IF_ERROR(printed);
    if (interrupted && answer.tokens().empty()) {
      messages_.erase(messages_.size() - 1);
      Remark("(stopped before the first token)");
      return OkStatus();
    }
    SF_RETURN_IF_ERROR(Print("\n"));
    messages_.push_back({{"role", "assistant"}, {"content", answer.text()}});
    const bool cut = output.choices.front().finish == FinishReason::kLength;
    Pace pace;
    pace.Add(answer.tokens());
    if (!options_.Flag("quiet") && !pace.empty()) {
      ShowSpeed(prompt_tokens, answer.tokens().size(), pace.Text(start),
                interrupted ? ", stopped"
                : cut       ? ", cut at the limit of tokens"
                            : "");
    }
    return OkStatus();
  }

  static void ShowSpeed(size_t prompt_tokens, size_t tokens, const std::string& pace,
                        std::string_view ending) {
    const bool colour = ::isatty(STDERR_FILENO) == 1;
    Remark(fmt::format("{}({} in, {} out{}; {}){}", colour ? "\x1b[2m" : "", Plural(static_cast<int64_t>(prompt_tokens), "token"),
                       tokens, ending, pace, colour ? "\x1b[0m" : ""));
  }

  const Options& options_;
  const Tokenizer& tokenizer_;
  Engine& engine_;
  const int64_t vocab_;
  SamplingParams sampling_;
  InterruptWatch& interrupts_;
  std::function<bool()> meanwhile_;
  std::string source_;  // of the chat template
  ordered_json messages_;
};

constexpr std::string_view kCommandHelp =
    "/new, /clear        a new chat: what was said is forgotten\n"
    "/help, /?           this\n"
    "/bye, /exit, /quit  leaves\n"
    "A message may begin with a space, so that a first / is text.\n";

enum class AfterCommand : uint8_t { kContinue, kLeave };

// `message` begins with '/'.
AfterCommand RunCommand(std::string_view message, Chat& chat, const ChatInput& input) {
  message = message.substr(0, message.find_last_not_of(" \t\r") + 1);
  if (message == "/bye" || message == "/exit" || message == "/quit") return AfterCommand::kLeave;
  if (message == "/new" || message == "/clear") {
    chat.StartOver();
    Remark("(new chat)");
  } else if (message == "/help" || message == "/?") {
    Remark(std::string(kCommandHelp) + std::string(input.key_help()));
  } else {
    Remark("(no such command; /help lists them; with a space before it, it is sent as text)");
  }
  return AfterCommand::kContinue;
}

Status Converse(Chat& chat, ChatInput& input) {
  Remark("Ask away. /help lists commands and keys, /bye or Ctrl-D leaves, Ctrl-C stops an answer.");
  chat.set_meanwhile([&] { return input.CollectKeys(); });
  while (true) {
    SF_ASSIGN_OR_RETURN(const std::optional<std::string> message, input.Next());
    if (!message) break;
    if (message->find_first_not_of(" \t\r\n") == std::string::npos) continue;
    if (message->front() == '/') {
      if (RunCommand(*message, chat, input) == AfterCommand::kLeave) break;
      continue;
    }
    const Status answered = chat.Ask(*message);
    if (answered.code() == StatusCode::kCancelled) return answered;
    if (answered.code() == StatusCode::kContextLength) {
      Remark("(" + answered.message() + "; /new starts over)");
    } else if (!answered.ok()) {
      return answered;
    }
  }
  return Print("\n");
}

// The prompt of a single answer: the argument, --prompt, or what is piped in; nullopt for a chat.
Result<std::optional<std::string>> SinglePrompt(const Options& options) {
  const bool argument = !options.arguments().empty();
  if (argument && options.IsGiven("prompt"))
    return InvalidArgument("the argument PROMPT and --prompt exclude each other");
  if (argument) return std::optional<std::string>(options.arguments().front());
  if (options.IsGiven("prompt")) return std::optional<std::string>(options.Text("prompt"));
  if (StdinIsTerminal()) return std::optional<std::string>();
  SF_ASSIGN_OR_RETURN(std::string piped, ReadStdin(kPromptBytesMax));
  while (!piped.empty() && (piped.back() == '\n' || piped.back() == '\r')) piped.pop_back();
  if (piped.empty())
    return InvalidArgument("no prompt: stdin is empty and no terminal; give PROMPT or --prompt");
  return std::optional<std::string>(std::move(piped));
}

}  // namespace

Status RunChat(const Options& options, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_ASSIGN_OR_RETURN(const std::optional<std::string> prompt, SinglePrompt(options));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFor(options, path));
  if (tokenizer == nullptr)
    return InvalidFile(path + ": holds no tokenizer; name one with --tokenizer");
  InterruptWatch interrupts;  // before the model's threads, which inherit what is blocked
  const auto end_if_interrupted = [&] {
    if (interrupts.Take()) std::_Exit(1);  // nothing is to be saved
  };
  SF_ASSIGN_OR_RETURN(LoadedModel loaded,
                      LoadModel(options, launch, tokenizer.get(), end_if_interrupted));
  const ModelConfig& config = loaded.config;
  SF_ASSIGN_OR_RETURN(
      SamplingParams sampling,
      SamplingFrom(options, loaded.generation, std::max<int64_t>(config.max_positions, 1)));
  SF_RETURN_IF_ERROR(ValidateSampling(sampling, config.vocab));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      Engine::StartWith(std::move(loaded.model), EngineOptionsFrom(options)));
  if (const std::string remark = SmallKvRemark(options, *engine, loaded.config, loaded.layout); !remark.empty())
    Remark("(warning: " + remark + ")");
  Chat chat(options, {*tokenizer, *engine, config.vocab}, std::move(sampling), interrupts);
  SF_RETURN_IF_ERROR(chat.SetUp());
  if (prompt) {
    SF_RETURN_IF_ERROR(chat.Ask(*prompt));
  } else {
    const bool keeps = !options.Flag("no-history");
    const std::unique_ptr<ChatInput> input =
        ChatInput::Make(interrupts, keeps ? HistoryFile::DefaultPath() : "");
    SF_RETURN_IF_ERROR(Converse(chat, *input));
  }
  return WriteStats(options, loaded.layout, engine->stats().experts, loaded.group);
}

}  // namespace sixfold::apps
