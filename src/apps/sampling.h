// From options to what the engine samples by, and the text of one answer as it comes.
#pragma once

#include <span>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "apps/options.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/request.h"
#include "model/config.h"
#include "text/stream_decoder.h"

namespace sixfold::apps {

EngineOptions EngineOptionsFrom(const Options& options);

// What --max-tokens auto stands for in `generate`.
inline constexpr int64_t kGenerateMaxTokensAuto = 128;

// Sampling of `run` and `generate`. What is not given comes from the model's defaults where the
// command says so (generate: temperature 0). max_tokens_auto: what --max-tokens auto stands for.
Result<SamplingParams> SamplingFrom(const Options& options, const GenerationDefaults& defaults,
                                    int64_t max_tokens_auto);

// The text of one choice. Without a tokenizer it stays "". Thread rule: one thread.
class AnswerText {
 public:
  // tokenizer: may be null; must outlive this.
  AnswerText(const Tokenizer* tokenizer, const std::vector<std::string>& stop,
             const SamplingParams& sampling);

  // Text that the tokens of a delta add; after the last delta, what was held back as well.
  std::string Add(const Delta& delta);
  bool stopped() const { return decoder_ && decoder_->stopped(); }
  const std::vector<SampledToken>& tokens() const { return tokens_; }
  const std::string& text() const { return text_; }

 private:
  std::optional<StreamDecoder> decoder_;
  int64_t min_tokens_;
  std::vector<SampledToken> tokens_;
  std::string text_;
};

// When the tokens of a request's choices were sampled, in words for people.
class Pace {
 public:
  void Add(std::span<const SampledToken> choice);
  bool empty() const { return tokens_ == 0; }
  // "first after 210 ms, then 118.2 tokens/s"; without the rate when no choice has two tokens.
  std::string Text(std::chrono::steady_clock::time_point start) const;

 private:
  std::chrono::steady_clock::time_point first_, last_;
  size_t tokens_ = 0, choices_ = 0;
};

// "stop", "length", "abort", "error".
std::string_view FinishName(FinishReason reason);

}  // namespace sixfold::apps
