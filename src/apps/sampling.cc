#include "apps/sampling.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <charconv>
#include <chrono>
#include <cmath>

#include "apps/loading.h"

namespace sixfold::apps {
namespace {

constexpr double kChatTemperature = 0.7;  // of models that say nothing

// The option's value, else the model's where it has one (negative: none), else `fallback`.
double Real(const Options& options, const char* name, double of_model, double fallback) {
  if (const auto given = options.MaybeReal(name)) return *given;
  return of_model >= 0 ? of_model : fallback;
}

// "ID=X" or llama.cpp's "ID+X", "ID-X".
Status AddBias(const std::string& text, std::map<TokenId, double>* biases) {
  TokenId id = 0;
  double bias = 0;
  const char* const end = text.data() + text.size();
  const auto [after_id, id_error] = std::from_chars(text.data(), end, id);
  const char* number =
      after_id != end && (*after_id == '=' || *after_id == '+') ? after_id + 1 : after_id;
  const auto [after, error] = std::from_chars(number, end, bias);
  const bool split = number != after_id || (after_id != end && *after_id == '-');
  if (id_error != std::errc() || error != std::errc() || after != end || !split ||
      !std::isfinite(bias)) {
    return InvalidArgument("--logit-bias: expected ID=X such as 42=-100, got '" + text + "'");
  }
  (*biases)[id] = bias;
  return OkStatus();
}

// 52 random bits: exact in every JSON reader.
uint64_t DrawSeed() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits)
    bits = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  return bits >> 12;
}

}  // namespace

EngineOptions EngineOptionsFrom(const Options& options) {
  EngineOptions out;
  out.max_model_len = options.MaybeInteger("max-model-len").value_or(0);
  out.max_num_seqs = static_cast<int>(options.Integer("max-num-seqs"));
  out.max_num_batched_tokens = BatchedTokensOf(options);
  out.kv_cache_memory_bytes = options.MaybeInteger("kv-cache-memory").value_or(0);
  out.max_queued_requests = static_cast<int>(options.Integer("max-queued-requests"));
  return out;
}

Result<SamplingParams> SamplingFrom(const Options& options, const GenerationDefaults& defaults,
                                    int64_t max_tokens_auto) {
  const bool greedy_by_default = options.command() == CommandId::kGenerate;
  SamplingParams out;
  out.temperature = greedy_by_default
                        ? options.MaybeReal("temperature").value_or(0.0)
                        : Real(options, "temperature", defaults.temperature, kChatTemperature);
  out.top_p = Real(options, "top-p", defaults.top_p, 1.0);
  out.min_p = Real(options, "min-p", defaults.min_p, 0.0);
  out.top_k = options.MaybeInteger("top-k").value_or(std::max<int64_t>(defaults.top_k, 0));
  out.repetition_penalty = Real(options, "repetition-penalty", defaults.repetition_penalty, 1.0);
  out.presence_penalty = options.MaybeReal("presence-penalty").value_or(0.0);
  out.frequency_penalty = options.MaybeReal("frequency-penalty").value_or(0.0);
  // Drawn here and not by the engine, so that the seed that is reported can be given back as
  // --seed.
  out.seed = options.MaybeSeed("seed").value_or(DrawSeed());
  out.n = static_cast<int>(options.Integer("n"));
  out.max_tokens = options.MaybeInteger("max-tokens").value_or(max_tokens_auto);
  out.min_tokens = options.Integer("min-tokens");
  out.ignore_eos = options.Flag("ignore-eos");
  for (const int64_t id : options.Integers("stop-token-ids"))
    out.stop_token_ids.push_back(static_cast<TokenId>(id));
  out.logprobs = static_cast<int>(options.Integer("logprobs"));
  for (const std::string& bias : options.Texts("logit-bias"))
    SF_RETURN_IF_ERROR(AddBias(bias, &out.logit_bias));
  return out;
}

AnswerText::AnswerText(const Tokenizer* tokenizer, const std::vector<std::string>& stop,
                       const SamplingParams& sampling)
    : min_tokens_(sampling.min_tokens) {
  if (tokenizer != nullptr) decoder_.emplace(tokenizer, StreamOptions{.stop = stop});
}

std::string AnswerText::Add(const Delta& delta) {
  std::string added;
  for (const SampledToken& token : delta.tokens) {
    if (stopped()) break;
    tokens_.push_back(token);
    const bool counts = static_cast<int64_t>(tokens_.size()) >= min_tokens_;
    // A token that ended the answer is no part of its text, special or not.
    const bool ends = delta.finish == FinishReason::kStop && delta.stop_token == token.token &&
                      &token == &delta.tokens.back();
    if (decoder_ && !ends)
      decoder_->Append(token.token, &added, counts ? StopCheck::kYes : StopCheck::kNo);
  }
  if (decoder_ && (delta.finish || stopped())) decoder_->Finish(&added);
  text_ += added;
  return added;
}

void Pace::Add(std::span<const SampledToken> choice) {
  if (choice.empty()) return;
  first_ = empty() ? choice.front().sampled_at : std::min(first_, choice.front().sampled_at);
  last_ = std::max(last_, choice.back().sampled_at);
  tokens_ += choice.size();
  ++choices_;
}

std::string Pace::Text(std::chrono::steady_clock::time_point start) const {
  const std::chrono::duration<double> until_first = first_ - start, after = last_ - first_;
  std::string text = fmt::format("first after {:.0f} ms", until_first.count() * 1000);
  // What lies between the first tokens of several choices is one step.
  const size_t later = tokens_ - choices_;
  if (later > 0 && after.count() > 0)
    text += fmt::format(", then {:.1f} tokens/s", static_cast<double>(later) / after.count());
  return text;
}

std::string_view FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAborted: return "abort";
    case FinishReason::kError: return "error";
  }
  return "error";
}

}  // namespace sixfold::apps
