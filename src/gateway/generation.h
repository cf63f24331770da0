// One POST of a client from its acceptance to its last byte: prompts and n choices in, events or
// one answer out. Turns Deltas into text, ends choices at stop strings, keeps what a slow client
// has not read bounded.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gateway/backend.h"
#include "gateway/byte_budget.h"
#include "gateway/http_server.h"
#include "gateway/metrics.h"
#include "gateway/openai_format.h"
#include "gateway/openai_schema.h"
#include "gateway/request_log.h"
#include "gateway/text_codec.h"

namespace sixfold::gateway {

using Time = std::chrono::steady_clock::time_point;
using Headers = std::vector<std::pair<std::string, std::string>>;

// A prompt as the engine takes it.
struct PreparedPrompt {
  std::vector<TokenId> tokens;
  int64_t code_points =
      0;  // of its text, when logprobs of completions were asked for; offsets count from there
};

// What all generations share; everything outlives them.
struct GenerationServices {
  Backend& backend;
  const TextCodec& codec;
  Metrics& metrics;
  Log& log;
  const ByteBudget& answers;            // answers that are not streamed, over all generations
  int64_t answer_bytes_max = 64 << 20;  // of one of them
  int64_t output_bytes_max =
      1 << 20;  // of a stream, queued or held; beyond it the client is dropped
  int64_t coalesce_bytes = 32 << 10;  // queued beyond it: text is gathered into fewer events
};

// Thread rule: I/O thread only. Begin, OnDelta, OnWritable, OnGone and Fail may end it; then done()
// is true and nothing of it runs in the backend any more.
class Generation {
 public:
  // Makes the sink for prompt number `prompt`; what it is given comes back through OnDelta.
  using SinkFactory = std::function<Backend::Sink(int prompt)>;

  // client_id: the client's name for the request, for the log.
  Generation(const GenerationServices& services, AnswerHead head,
             std::shared_ptr<Exchange> exchange, Headers headers, std::string client_id,
             Time received);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Submits all prompts. What fails here is answered with its HTTP status; nothing of the stream is
  // out yet.
  // lease: of what the request holds in the backend.
  void Begin(const ApiRequest& request, std::vector<PreparedPrompt> prompts,
             ByteBudget::Lease lease, const SinkFactory& sinks);
  void OnDelta(int prompt, Delta delta);
  void OnWritable();
  void OnGone();
  // Writes a comment into a stream that has had nothing since then.
  void KeepAlive(Time silent_since);
  // Answers with the error: an HTTP status before the first byte, an event after it.
  void Fail(const ApiError& error);
  // After an exception in here, which must not reach other generations: as Fail, and where not even
  // that succeeds the connection is closed.
  void GiveUp(const std::exception& why);
  bool done() const { return done_; }

 private:
  struct Choice {
    std::unique_ptr<TextDecoder> decoder;
    ChoiceNews news;  // not yet written; everything so far when not streaming
    std::vector<std::pair<int64_t, LogprobEntry>>
        held_logprobs;  // by the byte of the text where the token starts
    int64_t decoded_bytes = 0, decoded_code_points = 0;  // of all tokens
    int64_t shown_bytes = 0;                             // of the text that left the decoder
    int64_t tokens = 0;
    int64_t held_bytes = 0;  // of news and held_logprobs, as JSON
    Time first_token, last_token;  // when they were sampled
    bool finished = false, final_written = false;
    bool token_without_text =
        false;  // to be shown as a chunk of its own, for there is no tokenizer
  };

  void TakeToken(int prompt, Choice& choice, const SampledToken& sampled);
  void HoldLogprobs(int prompt, Choice& choice, const SampledToken& sampled);
  void ReleaseLogprobs(Choice& choice, bool all);
  void ShowText(Choice& choice, std::string text);
  void Finish(Choice& choice, FinishReason reason);
  void ObserveToken(Choice& choice, Time sampled_at);
  void ObserveEnd(const Choice& choice);
  void WriteChoice(Choice& choice);
  void EndIfFinished();
  enum class Gone : uint8_t { kLeft, kTooSlow };
  void Abandon(Gone why);
  void AbortAll();
  void DropIfTooSlow();
  void Hold(Choice& choice, int64_t bytes);
  bool AnswerIsTooLarge() const;
  void BoundHeldBytes();
  void Send(const std::string& json);
  Usage TotalUsage() const;
  RequestRecord Record(Time now) const;
  // The request's line in the log, once; `complete` adds to the record how it ended.
  template <typename Complete>
  void WriteLog(Complete complete) noexcept;

  const GenerationServices& services_;
  const AnswerHead head_;
  const std::shared_ptr<Exchange> exchange_;
  Headers headers_;  // of the answer
  const std::string client_id_;
  const Time received_;
  Time submitted_;
  std::optional<Time> started_;  // the first step for any choice

  ApiRequest request_;  // without prompts and messages, which are large
  std::vector<int64_t> prompt_tokens_, prompt_code_points_;  // [prompts]
  std::vector<RequestId> ids_;                               // [prompts]
  std::vector<Choice> choices_;                              // [prompts * n]
  ByteBudget::Lease request_lease_, answer_lease_;
  int64_t held_bytes_ = 0;  // of all choices
  bool logged_ = false;
  bool head_sent_ = false, first_token_seen_ = false, done_ = false;
  int unfinished_ = 0;
  Time last_token_;  // of all choices, when it was sampled
  Time last_sent_;  // of a stream: its head, event or comment
};

}  // namespace sixfold::gateway
