#include <algorithm>

#include "apps/option_sources.h"
#include "model/config.h"

namespace sixfold::apps {
namespace {

using enum CommandId;

constexpr CommandSet kAll = (CommandSet{1} << kCommandCount) - 1;
constexpr CommandSet kWithModel = kAll & ~Commands(kDoctor, kByteFormulas);
constexpr CommandSet kForward = Commands(kRun, kServe, kGenerate, kLogits, kPerplexity);
// Commands whose answer depends on how the model computes.
constexpr CommandSet kComputing = kForward | Commands(kLayout, kVerify, kTrace);
constexpr CommandSet kWithEngine = Commands(kRun, kServe, kGenerate);
constexpr CommandSet kSampled = Commands(kRun, kGenerate);
constexpr double kTera = 1099511627776.0;
constexpr double kMaxTokens = 1e9;

// An option that commands share and that means a little something else to each: help never tells of other commands.
OptionSpec For(CommandSet commands, OptionSpec spec, std::string_view help) {
  spec.commands = commands;
  spec.help = help;
  return spec;
}

OptionSpec WithAuto(CommandSet commands, OptionSpec spec, std::string_view auto_means) {
  spec.commands = commands;
  spec.auto_means = auto_means;
  return spec;
}

std::vector<OptionSpec> CommandOptions() {
  using enum OptionType;
  constexpr OptionGroup group = OptionGroup::kCommand;
  const OptionSpec prompt{.name = "prompt", .aliases = {"-p"}, .type = kText, .group = group, .metavar = "TEXT"};
  OptionSpec exact_prompt = prompt;  // what is computed must be what was given, byte for byte
  exact_prompt.utf8 = true;
  const OptionSpec tokens{.name = "tokens", .type = kIntegers, .group = group, .metavar = "IDS", .min = 0, .max = 2147483647};
  OptionSpec token_count = tokens;
  token_count.metavar = "N";
  const OptionSpec output{.name = "output", .aliases = {"-o", "output-file"}, .type = kText, .group = group, .metavar = "FILE"};
  return {
      For(Commands(kGenerate), exact_prompt, "text to continue, in UTF-8"),
      For(Commands(kRun), prompt, "text to ask, instead of a chat"),
      For(Commands(kTrace), exact_prompt, "text whose token to follow, in UTF-8"),
      {.name = "prompt-tokens",
       .type = kIntegers,
       .group = group,
       .commands = Commands(kGenerate, kTrace),
       .metavar = "IDS",
       .min = 0,
       .max = 2147483647,
       .help = "the prompt as token ids, such as 1,2,3; needs no tokenizer"},
      {.name = "system-prompt",
       .aliases = {"-sys"},
       .type = kText,
       .group = group,
       .commands = Commands(kRun),
       .metavar = "TEXT",
       .help = "what the model is told before the chat"},
      {.name = "no-history",
       .type = kFlag,
       .group = group,
       .commands = Commands(kRun),
       .fallback = "false",
       .help = "neither recall nor keep what is typed ($XDG_STATE_HOME/sixfold/run_history)"},
      For(Commands(kLogits), tokens, "token ids to run through the model, such as 1,2,3"),
      For(Commands(kLayout), token_count, "rows of the step whose bytes are printed [default: 1]"),
      For(Commands(kVerify), token_count, "with --balance: tokens of the prompt [default: 16384]"),
      For(Commands(kLogits, kDump), output, "safetensors file to write"),
      For(Commands(kTrace), output, "file for the answer, instead of stdout"),
      {.name = "port",
       .type = kInteger,
       .group = group,
       .commands = Commands(kDoctor),
       .metavar = "N",
       .fallback = "8000",
       .min = 0,
       .max = 65535,
       .help = "port of 127.0.0.1 that must be free for a server"},
      {.name = "lossy",
       .type = kFlag,
       .group = group,
       .commands = Commands(kTokenize, kPerplexity),
       .fallback = "false",
       .help = "put U+FFFD in the place of bytes that are not UTF-8, which are an error otherwise"},
      {.name = "context",
       .type = kInteger,
       .group = group,
       .commands = Commands(kPerplexity),
       .metavar = "N",
       .fallback = "512",
       .min = 2,
       .max = kMaxTokens,
       .help = "tokens in a window; its second half is scored"},
      {.name = "no-special",
       .type = kFlag,
       .group = group,
       .commands = Commands(kTokenize),
       .fallback = "false",
       .help = "add no special tokens around the text (BOS, EOS)"},
      {.name = "tools",
       .type = kText,
       .group = group,
       .commands = Commands(kRender),
       .metavar = "FILE",
       .help = "JSON list of tools for the chat template"},
      {.name = "add-generation-prompt",
       .type = kFlag,
       .group = group,
       .commands = Commands(kRender),
       .fallback = "true",
       .help = "end with the words that open the model's answer"},
      {.name = "chat-template-kwargs",
       .type = kText,
       .group = group,
       .commands = Commands(kRun, kRender),
       .metavar = "JSON",
       .help = "more variables for the chat template, such as '{\"enable_thinking\": false}'",
       .utf8 = true},
      {.name = "json",
       .type = kFlag,
       .group = group,
       .commands = kAll & ~Commands(kRun, kServe),
       .fallback = "false",
       .help = "print one JSON value on stdout and nothing else"},
      {.name = "jsonl",
       .type = kFlag,
       .group = group,
       .commands = Commands(kTokenize, kDetokenize),
       .fallback = "false",
       .help = "one JSON value a line in, one a line out"},
  };
}

std::vector<OptionSpec> ModelOptions() {
  using enum OptionType;
  constexpr OptionGroup group = OptionGroup::kModel;
  return {
      {.name = "model",
       .aliases = {"model-path", "-m"},
       .type = kText,
       .group = group,
       .commands = kWithModel,
       .metavar = "MODEL",
       .help = "Hugging Face folder or .gguf file; the same as the argument MODEL"},
      {.name = "tokenizer",
       .aliases = {"tokenizer-path"},
       .type = kText,
       .group = group,
       .commands = Commands(kRun, kServe, kGenerate, kPerplexity, kTrace),
       .metavar = "PATH",
       .fallback = "auto",
       .auto_means = "the model's own",
       .help = "folder or .gguf file to take the tokenizer from"},
      {.name = "add-bos-token",
       .type = kChoice,
       .group = group,
       .commands = Commands(kRun, kServe, kGenerate, kTokenize, kPerplexity, kTrace),
       .metavar = "WISH",
       .fallback = "auto",
       .auto_means = "as the tokenizer's files say",
       .choices = {"auto", "true", "false"},
       .help = "put the BOS token before texts; what a chat template makes is taken as it is"},
      {.name = "chat-template",
       .aliases = {"chat-template-file"},
       .type = kText,
       .group = group,
       .commands = Commands(kRun, kServe, kRender),
       .metavar = "FILE",
       .fallback = "auto",
       .auto_means = "the model's own",
       .help = "file with a Jinja chat template, or the template itself"},
      {.name = "max-model-len",
       .aliases = {"context-length", "ctx-size", "-c"},
       .type = kInteger,
       .group = group,
       .commands = kWithEngine,
       .metavar = "N",
       .fallback = "auto",
       .auto_means = "the model's, or less if the K/V memory holds less",
       .min = 1,
       .max = kMaxTokens,
       .help = "tokens of prompt and answer together"},
  };
}

std::vector<OptionSpec> ArithmeticOptions() {
  using enum OptionType;
  constexpr OptionGroup group = OptionGroup::kArithmetic;
  const OptionSpec chunk{.name = "attention-chunk",
                         .type = kInteger,
                         .group = group,
                         .metavar = "N",
                         .fallback = "auto",
                         .min = 16,
                         .max = 512,
                         .power_of_two = true,
                         .help = "keys of one partial sum of attention; part of the numeric contract"};
  return {
      {.name = "dtype",
       .type = kChoice,
       .group = group,
       .commands = kComputing,
       .metavar = "TYPE",
       .fallback = "auto",
       .auto_means = "f32 for F32 files, else bf16",
       .choices = {"auto", "f32", "bf16", "int8", "float32=f32", "float=f32", "bfloat16=bf16"},
       .help =
           "arithmetic of activations: auto, f32, bf16 or int8; int8 is used only when asked for"},
      {.name = "numerics",
       .type = kChoice,
       .group = group,
       .commands = kComputing,
       .metavar = "MODE",
       .fallback = "reproducible",
       .choices = {"reproducible", "fast"},
       .help = "reproducible: the bits of a logit depend on weights, prompt and seed alone; "
               "fast: sums may be regrouped"},
      {.name = "isa",
       .type = kChoice,
       .group = group,
       .commands = kComputing,
       .metavar = "ISA",
       .fallback = "auto",
       .auto_means = "the widest that this machine has",
       .choices = {"auto", "scalar", "avx2", "avx512", "amx"},
       .help = "instructions to compute with: auto, scalar, avx2, avx512 or amx; all give "
               "the same bits"},
      {.name = "threads",
       .aliases = {"-t"},
       .type = kInteger,
       .group = group,
       .commands = kComputing,
       .metavar = "N",
       .fallback = "auto",
       .auto_means = "the cores that this process may use, shared out among its ranks",
       .min = 1,
       .max = 1024,
       .help = "threads that compute on each rank"},
      {.name = "max-num-batched-tokens",
       .aliases = {"chunked-prefill-size", "batch-size", "-b"},
       .type = kInteger,
       .group = group,
       .commands = kForward,
       .metavar = "N",
       .fallback = "auto",
       .auto_means = "512, or 2 x cp x the attention chunk if that is more",
       .min = 1,
       .max = 1 << 20,
       .help = "rows of one pass: a longer prompt is prefilled in chunks of this many tokens"},
      WithAuto(kComputing & ~Commands(kVerify), chunk, "256"),
      WithAuto(Commands(kVerify), chunk, "16, for its prompts are short"),
      {.name = "reduction-leaves",
       .type = kInteger,
       .group = group,
       .commands = kComputing,
       .metavar = "N",
       .fallback = "8",
       .min = 1,
       .max = 1024,
       .help = "leaves of a reduction that ranks may share; part of the numeric contract"},
  };
}

std::vector<OptionSpec> EngineAndServerOptions() {
  using enum OptionType;
  constexpr OptionGroup engine = OptionGroup::kEngine;
  constexpr OptionGroup server = OptionGroup::kServer;
  return {
      {.name = "max-num-seqs",
       .aliases = {"max-running-requests", "parallel", "-np"},
       .type = kInteger,
       .group = engine,
       .commands = kWithEngine,
       .metavar = "N",
       .fallback = "64",
       .min = 1,
       .max = 65536,
       .help = "answers that are computed together"},
      {.name = "kv-cache-memory",
       .aliases = {"kv-cache-memory-bytes"},
       .type = kBytes,
       .group = engine,
       .commands = kWithEngine,
       .metavar = "SIZE",
       .fallback = "auto",
       .auto_means = "1 GiB, or 40 % of the free memory if that is less",
       .min = 1,
       .max = 64 * kTera,
       .help = "memory for keys and values on each rank, such as 512M or 4GiB (K M G T count in "
               "1,024s, k m g t in 1,000s)"},
      {.name = "max-queued-requests",
       .type = kInteger,
       .group = engine,
       .commands = Commands(kServe),
       .metavar = "N",
       .fallback = "1024",
       .min = 0,
       .max = 1 << 20,
       .help = "requests that may wait; the next one is answered 429"},
      {.name = "served-model-name",
       .aliases = {"alias", "-a"},
       .type = kTexts,
       .group = server,
       .commands = Commands(kServe),
       .metavar = "NAME",
       .help = "names that clients use, such as a b or a,b, or given several times; otherwise "
               "the name of the file or folder",
       .utf8 = true,
       .many = true},
      {.name = "host",
       .type = kText,
       .group = server,
       .commands = Commands(kServe),
       .metavar = "ADDRESS",
       .fallback = "127.0.0.1",
       .help = "address to listen on; 0.0.0.0 for every interface"},
      {.name = "port",
       .type = kInteger,
       .group = server,
       .commands = Commands(kServe),
       .metavar = "N",
       .fallback = "8000",
       .min = 0,
       .max = 65535,
       .help = "port to listen on; 0: any free one"},
      {.name = "api-key",
       .type = kText,
       .group = server,
       .commands = Commands(kServe),
       .metavar = "KEY",
       .help = "key that clients must send as 'Authorization: Bearer KEY'",
       .secret = true},
      {.name = "protect-metrics",
       .type = kFlag,
       .group = server,
       .commands = Commands(kServe),
       .fallback = "false",
       .help = "ask for the key of --api-key at /metrics too"},
      {.name = "drain-timeout",
       .type = kInteger,
       .group = server,
       .commands = Commands(kServe),
       .metavar = "SECONDS",
       .fallback = "30",
       .min = 0,
       .max = 86400,
       .help = "how long answers may go on after SIGTERM"},
      {.name = "log-level",
       .type = kChoice,
       .group = server,
       .commands = Commands(kServe),
       .metavar = "LEVEL",
       .fallback = "auto",
       .auto_means = "info; with --quiet warning",
       .choices = {"auto", "debug", "info", "warning", "error", "off", "trace=debug", "warn=warning",
                   "critical=error"},
       .help = "what is logged on stderr: debug (every request), info (each generation and refusal), "
               "warning, error or off"},
      {.name = "log-format",
       .type = kChoice,
       .group = server,
       .commands = Commands(kServe),
       .metavar = "FORMAT",
       .fallback = "text",
       .choices = {"text", "json"},
       .help = "text: time, level, words and key=value; json: an object a line"},
  };
}

std::vector<OptionSpec> SamplingOptions() {
  using enum OptionType;
  constexpr OptionGroup group = OptionGroup::kSampling;
  constexpr std::string_view kModels = "the model's generation_config.json, else no effect";
  const OptionSpec max_tokens{.name = "max-tokens",
                              .aliases = {"max-new-tokens", "n-predict", "predict", "-n"},
                              .type = kInteger,
                              .group = group,
                              .metavar = "N",
                              .fallback = "auto",
                              .min = 1,
                              .max = kMaxTokens,
                              .help = "tokens of the answer"};
  const OptionSpec temperature{.name = "temperature",
                               .aliases = {"temp"},
                               .type = kReal,
                               .group = group,
                               .metavar = "T",
                               .fallback = "auto",
                               .min = 0,
                               .max = 2,
                               .help = "0: always the most likely token"};
  return {
      WithAuto(Commands(kGenerate), max_tokens, "128"),
      WithAuto(Commands(kRun), max_tokens, "as many as the context holds"),
      WithAuto(Commands(kGenerate), temperature, "0"),
      WithAuto(Commands(kRun), temperature, "the model's generation_config.json, else 0.7"),
      {.name = "top-p",
       .type = kReal,
       .group = group,
       .commands = kSampled,
       .metavar = "P",
       .fallback = "auto",
       .auto_means = kModels,
       .min = 0,
       .max = 1,
       .help = "sample from the most likely tokens that make up P"},
      {.name = "top-k",
       .type = kInteger,
       .group = group,
       .commands = kSampled,
       .metavar = "K",
       .fallback = "auto",
       .auto_means = kModels,
       .min = -1,
       .max = kMaxTokens,
       .help = "sample from the K most likely tokens; 0: all"},
      {.name = "min-p",
       .type = kReal,
       .group = group,
       .commands = kSampled,
       .metavar = "P",
       .fallback = "auto",
       .auto_means = kModels,
       .min = 0,
       .max = 1,
       .help = "drop tokens below P times the most likely one"},
      {.name = "repetition-penalty",
       .aliases = {"repeat-penalty"},
       .type = kReal,
       .group = group,
       .commands = kSampled,
       .metavar = "R",
       .fallback = "auto",
       .auto_means = kModels,
       .min = kRepetitionPenaltyMin,
       .max = kRepetitionPenaltyMax,
       .help = "divides the logits of tokens already in prompt or answer; 1: none"},
      {.name = "presence-penalty",
       .type = kReal,
       .group = group,
       .commands = kSampled,
       .metavar = "X",
       .fallback = "0",
       .min = -2,
       .max = 2,
       .help = "taken off the logit of a token already in the answer"},
      {.name = "frequency-penalty",
       .type = kReal,
       .group = group,
       .commands = kSampled,
       .metavar = "X",
       .fallback = "0",
       .min = -2,
       .max = 2,
       .help = "the same, as often as the token is in the answer"},
      {.name = "logit-bias",
       .type = kTexts,
       .group = group,
       .commands = kSampled,
       .metavar = "ID=X",
       .help = "added to the logit of a token, -100 to 100; may be given several times"},
      {.name = "seed",
       .aliases = {"-s"},
       .type = kSeed,
       .group = group,
       .commands = kSampled,
       .metavar = "N",
       .fallback = "auto",
       .auto_means = "drawn, and reported",
       .help = "any 64-bit integer; equal seeds give equal answers, and -1 is the seed 2^64 - 1"},
      {.name = "n",
       .type = kInteger,
       .group = group,
       .commands = Commands(kGenerate),
       .metavar = "N",
       .fallback = "1",
       .min = 1,
       .max = 128,
       .help = "answers to one prompt"},
      {.name = "stop",
       .type = kTexts,
       .group = group,
       .commands = kSampled,
       .metavar = "TEXT",
       .help = "text that ends the answer, may be given several times",
       .utf8 = true},
      {.name = "stop-token-ids",
       .type = kIntegers,
       .group = group,
       .commands = kSampled,
       .metavar = "IDS",
       .min = 0,
       .max = 2147483647,
       .help = "token ids that end the answer"},
      {.name = "min-tokens",
       .type = kInteger,
       .group = group,
       .commands = kSampled,
       .metavar = "N",
       .fallback = "0",
       .min = 0,
       .max = kMaxTokens,
       .help = "tokens before the answer may end"},
      {.name = "ignore-eos",
       .type = kFlag,
       .group = group,
       .commands = kSampled,
       .fallback = "false",
       .help = "go on after an end-of-sequence token"},
      {.name = "logprobs",
       .type = kInteger,
       .group = group,
       .commands = Commands(kGenerate),
       .metavar = "K",
       .fallback = "-1",
       .min = -1,
       .max = 20,
       .help = "with --json: log probability of each token and the K most likely; -1: none"},
  };
}

std::vector<OptionSpec> GeneralOptions() {
  return {
      {.name = "config",
       .type = OptionType::kText,
       .group = OptionGroup::kGeneral,
       .commands = kAll,
       .metavar = "FILE",
       .help = "TOML file with any of these settings (not a key of the file itself)"},
      {.name = "quiet",
       .aliases = {"-q"},
       .type = OptionType::kFlag,
       .group = OptionGroup::kGeneral,
       .commands = kComputing,
       .fallback = "false",
       .help = "no progress on stderr"},
  };
}

std::vector<OptionSpec> MakeTable() {
  std::vector<OptionSpec> table;
  for (auto* part : {CommandOptions, TraceOptions, BytesOptions, ModelOptions, ArithmeticOptions, LayoutOptions, EngineAndServerOptions,
                     SamplingOptions, GeneralOptions}) {
    std::vector<OptionSpec> specs = part();
    std::move(specs.begin(), specs.end(), std::back_inserter(table));
  }
  // The parts cross groups; help and --print-config show group by group.
  std::stable_sort(table.begin(), table.end(), [](const OptionSpec& a, const OptionSpec& b) {
    return a.group < b.group;
  });
  return table;
}

}  // namespace

std::span<const OptionSpec> OptionTable() {
  static const std::vector<OptionSpec> table = MakeTable();
  return table;
}

const OptionSpec* FindOption(std::string_view name_or_alias, CommandSet commands) {
  const OptionSpec* elsewhere = nullptr;
  for (const OptionSpec& spec : OptionTable()) {
    const bool called = spec.name == name_or_alias || std::find(spec.aliases.begin(), spec.aliases.end(),
                                                                name_or_alias) != spec.aliases.end();
    if (!called) continue;
    if ((spec.commands & commands) != 0) return &spec;
    if (elsewhere == nullptr) elsewhere = &spec;
  }
  return elsewhere;
}

std::string EnvironmentName(std::string_view option) {
  std::string name = "SIXFOLD_";
  for (const char c : option)
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace sixfold::apps
