// sixfold perplexity: counted as llama.cpp's llama-perplexity counts it, so that figures compare.
//
// The text is tokenized once, specials in it not parsed, one trailing newline dropped. Windows of
// --context tokens do not overlap, what is left over is dropped, K/V are empty at the start of
// each. Where the tokenizer adds BOS it takes the place of a window's first token. Only predictions
// of the second half count.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/layout_options.h"
#include "apps/loading.h"
#include "apps/output.h"
#include "apps/prefill.h"
#include "apps/text_input.h"
#include "apps/text_loading.h"
#include "base/plural.h"

namespace sixfold::apps {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 30;

struct Score {
  double sum = 0;  // of -log p
  double sum_squares = 0;
  int64_t predictions = 0;

  double Perplexity() const { return std::exp(sum / static_cast<double>(predictions)); }
  // Of the perplexity, as the mean's standard error gives it.
  double StandardError() const {
    if (predictions < 2) return 0;
    const auto n = static_cast<double>(predictions);
    const double mean = sum / n;
    return std::exp(mean) * std::sqrt(std::max(0.0, sum_squares / n - mean * mean) / (n - 1));
  }
};

// -log softmax(logits)[token], sums in double.
double NegativeLogProbability(std::span<const float> logits, TokenId token) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  return std::log(sum) + highest - static_cast<double>(logits[static_cast<size_t>(token)]);
}

Result<std::vector<TokenId>> TokenizeText(const Options& options, const Tokenizer& tokenizer, const std::string& path) {
  SF_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, kTextBytesMax));
  Result<std::string> valid =
      Utf8Text(std::move(text), options.Flag("lossy") ? NotUtf8::kReplaced : NotUtf8::kRefused, path);
  if (!valid.ok()) return InvalidFile(valid.status().message() + "; --lossy puts U+FFFD in the place of such bytes");
  text = *std::move(valid);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  SF_ASSIGN_OR_RETURN(
      std::vector<TokenId> tokens,
      tokenizer.Encode(text, AddSpecial::kNo, ParseSpecial::kNo));
  if (tokenizer.AddsBos()) tokens.insert(tokens.begin(), *tokenizer.bos_id());
  return tokens;
}

// Adds the predictions of one window, whose tokens are given, to the score.
Status ScoreWindow(Prefill& prefill, std::span<const TokenId> tokens, int64_t vocab, Score* score) {
  const auto count = static_cast<int64_t>(tokens.size());
  return prefill.Run(tokens, count / 2, [&](int64_t first, std::span<const float> logits) {
    const int64_t rows = static_cast<int64_t>(logits.size()) / vocab;
    for (int64_t row = 0; row < rows && first + row + 1 < count; ++row) {
      const auto of_row =
          logits.subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab));
      const double loss =
          NegativeLogProbability(of_row, tokens[static_cast<size_t>(first + row + 1)]);
      score->sum += loss;
      score->sum_squares += loss * loss;
      score->predictions += 1;
    }
    return OkStatus();
  });
}

Status Report(const Options& options, const Score& score, int64_t windows, int64_t context) {
  const double value = score.Perplexity();
  if (!std::isfinite(value))
    return Internal("the perplexity is no finite number: a token was given probability 0, or NaN");
  if (options.Flag("json")) {
    const nlohmann::ordered_json json = {{"perplexity", value},
                                         {"tokens", score.predictions},
                                         {"standard_error", score.StandardError()},
                                         {"windows", windows},
                                         {"context", context}};
    return Print(json.dump() + "\n");
  }
  return Print(
      fmt::format("perplexity {:.4f} ± {:.4f} over {} {} in {} of {} tokens\n",
                  value, score.StandardError(), CountText(score.predictions), score.predictions == 1 ? "prediction" : "predictions",
                  Plural(windows, "window"), context));
}

}  // namespace

Status RunPerplexity(const Options& options, const Launch& launch) {
  const std::string& text_path = options.arguments().front();
  const int64_t context = options.Integer("context");
  SF_ASSIGN_OR_RETURN(const std::string path, FindModel(options));
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFor(options, path));
  if (tokenizer == nullptr)
    return InvalidFile(path + ": holds no tokenizer; name one with --tokenizer");
  SF_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, TokenizeText(options, *tokenizer, text_path));
  const int64_t windows = static_cast<int64_t>(tokens.size()) / context;
  if (windows == 0) {
    return InvalidArgument(fmt::format(
        "{} has {}, too few for one window of {}; take a longer text or a smaller "
        "--context",
        text_path, Plural(static_cast<int64_t>(tokens.size()), "token"), context));
  }
  SF_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(options, launch, tokenizer.get()));
  const int64_t vocab = loaded.config.vocab;
  SF_RETURN_IF_ERROR(
      CheckTokens({tokens.begin(), tokens.end()}, vocab, "the tokenizer does not fit the model"));
  const bool adds_bos = tokenizer->AddsBos();
  const bool quiet = options.Flag("quiet");
  const int64_t chunk = std::min(BatchedTokensOf(options), context);
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<Prefill> prefill,
                      Prefill::Create(*loaded.model, context, chunk));
  Score score;
  {
    Progress progress("perplexity", quiet ? Progress::Mode::kQuiet : Progress::Mode::kShown);
    for (int64_t window = 0; window < windows; ++window) {
      const std::span<TokenId> of_window(tokens.data() + window * context,
                                         static_cast<size_t>(context));
      if (adds_bos) of_window.front() = *tokenizer->bos_id();
      SF_RETURN_IF_ERROR(ScoreWindow(*prefill, of_window, vocab, &score));
      progress.Update(static_cast<double>(window + 1) / static_cast<double>(windows),
                      fmt::format("{:.4f} so far", score.Perplexity()));
    }
  }
  SF_RETURN_IF_ERROR(WriteStats(options, loaded.layout, loaded.model->expert_load(), loaded.group));
  return Report(options, score, windows, context);
}

}  // namespace sixfold::apps
