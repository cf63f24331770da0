// sixfold generate: one prompt, one or more answers, for scripts.
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/memory_table.h"
#include "apps/output.h"
#include "apps/sampling.h"
#include "apps/text_loading.h"
#include "base/plural.h"

namespace sixfold::apps {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Choice {
  AnswerText answer;
  FinishReason finish = FinishReason::kAborted;
};

Status CheckForm(const Options& options) {
  const bool text = options.IsGiven("prompt"), ids = options.IsGiven("prompt-tokens");
  if (!text && !ids)
    return InvalidArgument("a prompt is missing: --prompt TEXT or --prompt-tokens 1,2,3");
  if (text && ids) return InvalidArgument("--prompt and --prompt-tokens exclude each other");
  if (options.Integer("logprobs") >= 0 && !options.Flag("json"))
    return InvalidArgument("--logprobs needs --json");
  return OkStatus();
}

ordered_json LogprobsJson(const std::vector<SampledToken>& tokens) {
  ordered_json list = ordered_json::array();
  for (const SampledToken& token : tokens) {
    if (!token.logprobs) continue;
    ordered_json top = ordered_json::array();
    for (const auto& [id, logprob] : token.logprobs->top)
      top.push_back({{"token_id", id}, {"logprob", logprob}});
    list.push_back(
        {{"token_id", token.token}, {"logprob", token.logprobs->logprob}, {"top", std::move(top)}});
  }
  return list;
}

ordered_json ChoiceJson(const Choice& choice, bool with_logprobs) {
  ordered_json ids = ordered_json::array();
  for (const SampledToken& token : choice.answer.tokens()) ids.push_back(token.token);
  ordered_json json = {{"token_ids", std::move(ids)},
                       {"text", choice.answer.text()},
                       {"finish_reason", FinishName(choice.finish)}};
  if (with_logprobs) json["logprobs"] = LogprobsJson(choice.answer.tokens());
  return json;
}

Status PrintJson(const std::vector<Choice>& choices, const SamplingParams& sampling,
                 size_t prompt_tokens, uint64_t seed) {
  const bool with_logprobs = sampling.logprobs >= 0;
  ordered_json json = ChoiceJson(choices.front(), with_logprobs);
  json["prompt_tokens"] = prompt_tokens;
  json["seed"] = seed;
  if (choices.size() > 1) {
    for (const Choice& choice : choices)
      json["choices"].push_back(ChoiceJson(choice, with_logprobs));
  }
  return Print(json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

// For people: the text, or the ids where there is no tokenizer.
std::string PlainAnswer(const Choice& choice, bool has_text) {
  if (has_text) return choice.answer.text() + "\n";
  std::string ids;
  for (const SampledToken& token : choice.answer.tokens())
    ids += (ids.empty() ? "" : ",") + std::to_string(token.token);
  return ids + "\n";
}

}  // namespace

Status RunGenerate(const Options& options, const Launch& launch) {
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_RETURN_IF_ERROR(CheckForm(options));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFor(options, path));
  const std::vector<std::string>& stop = options.Texts("stop");
  if (!stop.empty() && tokenizer == nullptr)
    return InvalidArgument("--stop needs a tokenizer, and the model has none");
  SF_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(options, launch, tokenizer.get()));
  SF_ASSIGN_OR_RETURN(SamplingParams sampling,
                      SamplingFrom(options, loaded.generation, kGenerateMaxTokensAuto));
  const int64_t vocab = loaded.config.vocab;
  SF_RETURN_IF_ERROR(ValidateSampling(sampling, vocab));
  SF_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, PromptTokens(options, tokenizer.get(), vocab));
  const size_t prompt_tokens = prompt.size();
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      Engine::StartWith(std::move(loaded.model), EngineOptionsFrom(options)));
  if (const std::string remark = SmallKvRemark(options, *engine, loaded.config, loaded.layout); !remark.empty())
    Remark("(warning: " + remark + ")");

  std::vector<Choice> choices;
  for (int i = 0; i < sampling.n; ++i)
    choices.push_back({AnswerText(tokenizer.get(), stop, sampling)});
  const bool streams = !options.Flag("json") && sampling.n == 1 && tokenizer != nullptr;
  const Clock::time_point start = Clock::now();
  Status printed;
  const auto on_delta = [&](const Delta& delta) {
    Choice& choice = choices[static_cast<size_t>(delta.choice)];
    const std::string added = choice.answer.Add(delta);
    if (streams && printed.ok() && !added.empty()) printed = Print(added);
    if (delta.finish && !choice.answer.stopped()) choice.finish = *delta.finish;
    if (choice.answer.stopped()) choice.finish = FinishReason::kStop;
    return choice.answer.stopped() || !printed.ok() ? AfterDelta::kEndChoice
                                                    : AfterDelta::kContinue;
  };
  SF_ASSIGN_OR_RETURN(
      const GenerateOutput output,
      Generate(*engine, {.prompt = std::move(prompt), .sampling = sampling}, on_delta));
  SF_RETURN_IF_ERROR(printed);
  SF_RETURN_IF_ERROR(WriteStats(options, loaded.layout, engine->stats().experts, loaded.group));
  if (options.Flag("json")) return PrintJson(choices, sampling, prompt_tokens, output.seed);
  size_t tokens = 0;
  std::string text = streams ? "\n" : "";
  for (const Choice& choice : choices) {
    tokens += choice.answer.tokens().size();
    if (choices.size() > 1)
      text += fmt::format("--- {} ({})\n", &choice - choices.data() + 1, FinishName(choice.finish));
    if (!streams) text += PlainAnswer(choice, tokenizer != nullptr);
  }
  SF_RETURN_IF_ERROR(Print(text));
  Pace pace;
  for (const Choice& choice : choices) pace.Add(choice.answer.tokens());
  if (options.Flag("quiet") || pace.empty()) return OkStatus();
  Remark(fmt::format("{} in, {} out ({}); {}", Plural(static_cast<int64_t>(prompt_tokens), "token"), tokens,
                     FinishName(choices.front().finish), pace.Text(start)));
  return OkStatus();
}

}  // namespace sixfold::apps
