#include "gateway/generation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace sixfold::gateway {
namespace {

double Seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double Milliseconds(std::chrono::steady_clock::duration duration) {
  return Seconds(duration) * 1e3;
}

// What the log calls the end of a choice that has none of its own.
void AddReason(const std::string& reason, RequestRecord* record) {
  auto& all = record->finish_reasons;
  if (std::find(all.begin(), all.end(), reason) == all.end()) all.push_back(reason);
}

void Count(Metrics& metrics, Outcome outcome) {
  ++metrics.choices_finished[static_cast<size_t>(outcome)];
}

// What the logprobs of a token take as JSON at most; as values in memory they take less.
constexpr int64_t kLogprobBytes = 64, kLogprobBytesPerByte = 10;

int64_t JsonBytes(const LogprobEntry& entry) {
  int64_t bytes = kLogprobBytes + kLogprobBytesPerByte * static_cast<int64_t>(entry.token.size());
  for (const auto& [token, _] : entry.top)
    bytes += kLogprobBytes + kLogprobBytesPerByte * static_cast<int64_t>(token.size());
  return bytes;
}

// An answer holds so much without drawing on what all answers share, so that ordinary ones never
// fail because of others.
constexpr int64_t kFreeAnswerBytes = 64 << 10;

// What the choices take as JSON at least, in an answer that nothing can end before max_tokens.
int64_t CertainBytes(const ApiRequest& request, int64_t choices) {
  const SamplingParams& sampling = request.sampling;
  const bool endless = sampling.ignore_eos && sampling.stop_token_ids.empty();
  if (!request.stop.empty() || sampling.logprobs < 0) return 0;
  const int64_t tokens = endless ? sampling.max_tokens : sampling.min_tokens;
  return choices * tokens * (1 + sampling.logprobs) * kLogprobBytes;
}

ApiError AnswerTooLarge(int64_t bytes_max) {
  return {.message = "the answer would be larger than the " + std::to_string(bytes_max) +
                     " bytes that this server holds of one; ask for fewer of 'n', prompts, "
                     "logprobs and 'max_tokens', or for 'stream': true",
          .code = "answer_too_large"};
}

}  // namespace

Generation::Generation(const GenerationServices& services, AnswerHead head,
                       std::shared_ptr<Exchange> exchange, Headers headers, std::string client_id,
                       Time received)
    : services_(services),
      head_(std::move(head)),
      exchange_(std::move(exchange)),
      headers_(std::move(headers)),
      client_id_(std::move(client_id)),
      received_(received) {}

void Generation::Begin(const ApiRequest& request, std::vector<PreparedPrompt> prompts,
                       ByteBudget::Lease lease, const SinkFactory& sinks) {
  request_lease_ = std::move(lease);
  answer_lease_ = services_.answers.NewLease();
  submitted_ = std::chrono::steady_clock::now();
  request_.model = request.model;
  request_.stream = request.stream;
  request_.include_usage = request.include_usage;
  request_.continuous_usage = request.continuous_usage;
  request_.sampling = request.sampling;
  request_.skip_special_tokens = request.skip_special_tokens;
  request_.ignored = request.ignored;
  if (!request_.ignored.empty()) headers_.emplace_back("x-sixfold-ignored", request_.ignored);
  const int n = request.sampling.n;
  const auto choices = static_cast<int64_t>(prompts.size()) * n;
  if (!request.stream && CertainBytes(request, choices) > services_.answer_bytes_max)
    return Fail(AnswerTooLarge(services_.answer_bytes_max));
  const DecoderOptions decoding{
      .stop = request.stop,
      .special = request.skip_special_tokens ? DecoderOptions::Special::kSkip
                                             : DecoderOptions::Special::kKeep,
      .stop_string =
          request.include_stop ? DecoderOptions::Stop::kInclude : DecoderOptions::Stop::kLeaveOut};
  choices_.resize(static_cast<size_t>(choices));
  ids_.reserve(prompts.size());  // an id that could not be kept could not be aborted
  for (size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].decoder = services_.codec.NewDecoder(decoding);
    choices_[i].news.index = static_cast<int>(i);
    choices_[i].news.first = true;
    choices_[i].news.with_logprobs = request.sampling.logprobs >= 0;
  }
  unfinished_ = static_cast<int>(choices_.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompt_tokens_.push_back(static_cast<int64_t>(prompts[i].tokens.size()));
    prompt_code_points_.push_back(prompts[i].code_points);
    Request engine_request{.prompt = std::move(prompts[i].tokens), .sampling = request.sampling};
    auto id = services_.backend.Submit(std::move(engine_request), sinks(static_cast<int>(i)));
    if (!id.ok()) return Fail(ErrorFromStatus(id.status()));
    ids_.push_back(*id);
  }
  if (!request.stream) return;
  HttpResponse head{.content_type = "text/event-stream", .headers = headers_};
  head.headers.emplace_back("cache-control", "no-cache");
  head.headers.emplace_back("x-accel-buffering", "no");
  ++services_.metrics.responses[head.status];
  exchange_->StartStream(std::move(head));
  head_sent_ = true;
  last_sent_ = std::chrono::steady_clock::now();
}

void Generation::OnDelta(int prompt, Delta delta) {
  if (done_) return;
  const int n = request_.sampling.n;
  SF_CHECK(delta.choice >= 0 && delta.choice < n);
  Choice& choice = choices_[static_cast<size_t>(prompt * n + delta.choice)];
  if (delta.started) started_ = std::min(started_.value_or(*delta.started), *delta.started);
  if (choice.finished) return;  // it ended at a stop string; this is the engine's echo of the abort
  if (delta.finish == FinishReason::kError) {
    return Fail(delta.error.ok() ? ErrorFromStatus(Internal("the engine failed"))
                                 : ErrorFromStatus(delta.error));
  }
  if (delta.finish == FinishReason::kAborted) {
    return Fail(
        ErrorFromStatus(Status(StatusCode::kUnavailable, "the request was aborted by the server")));
  }
  const bool ends_with_stop_token =
      delta.finish == FinishReason::kStop && delta.stop_token.has_value();
  for (size_t i = 0; i < delta.tokens.size() && !choice.decoder->stop_string(); ++i) {
    ++choice.tokens;
    ObserveToken(choice, delta.tokens[i].sampled_at);
    // A token that ends the answer is counted, but is no part of its text.
    if (!(ends_with_stop_token && i + 1 == delta.tokens.size()))
      TakeToken(prompt, choice, delta.tokens[i]);
  }
  if (const std::string* stop = choice.decoder->stop_string()) {
    choice.news.stop_reason = *stop;
    if (!delta.finish)
      services_.backend.AbortChoice(ids_[static_cast<size_t>(prompt)], delta.choice);
    Finish(choice, FinishReason::kStop);
  } else if (delta.finish) {
    const auto& ids = request_.sampling.stop_token_ids;
    if (delta.stop_token && std::find(ids.begin(), ids.end(), *delta.stop_token) != ids.end()) {
      choice.news.stop_reason = *delta.stop_token;
    }
    Finish(choice, *delta.finish);
  }
  if (request_.stream) WriteChoice(choice);
  BoundHeldBytes();
  EndIfFinished();
}

// Called for each token that counts, in order: choice.tokens has it already.
void Generation::ObserveToken(Choice& choice, Time sampled_at) {
  Metrics& metrics = services_.metrics;
  if (!first_token_seen_) {
    first_token_seen_ = true;
    metrics.time_to_first_token.Observe(Seconds(sampled_at - received_));
  }
  if (choice.tokens == 1) {
    choice.first_token = sampled_at;
  } else {
    metrics.inter_token_latency.Observe(Seconds(sampled_at - choice.last_token));
  }
  choice.last_token = sampled_at;
  last_token_ = std::max(last_token_, sampled_at);
}

void Generation::ObserveEnd(const Choice& choice) {
  Metrics& metrics = services_.metrics;
  if (choice.tokens > 1) {  // one token has no time to the next
    metrics.time_per_output_token.Observe(Seconds(choice.last_token - choice.first_token) /
                                          static_cast<double>(choice.tokens - 1));
  }
  if (unfinished_ == 0) metrics.e2e_request_latency.Observe(Seconds(last_token_ - received_));
}

void Generation::TakeToken(int prompt, Choice& choice, const SampledToken& sampled) {
  if (request_.sampling.logprobs >= 0) HoldLogprobs(prompt, choice, sampled);
  using Check = TextDecoder::StopCheck;
  const Check check = choice.tokens >= request_.sampling.min_tokens ? Check::kYes : Check::kNo;
  ShowText(choice, choice.decoder->Push(sampled.token, check));
  if (services_.codec.has_text()) return;
  choice.token_without_text = true;
  ReleaseLogprobs(choice, true);
}

void Generation::HoldLogprobs(int prompt, Choice& choice, const SampledToken& sampled) {
  const TextCodec& codec = services_.codec;
  LogprobEntry entry{.token = codec.TokenBytes(sampled.token)};
  if (sampled.logprobs) {
    entry.logprob = sampled.logprobs->logprob;
    for (const auto& [token, logprob] : sampled.logprobs->top)
      entry.top.emplace_back(codec.TokenBytes(token), logprob);
  }
  entry.text_offset = prompt_code_points_[static_cast<size_t>(prompt)] + choice.decoded_code_points;
  const int64_t start = choice.decoded_bytes;
  if (!(request_.skip_special_tokens && codec.IsSpecial(sampled.token))) {
    choice.decoded_bytes += static_cast<int64_t>(entry.token.size());
    choice.decoded_code_points += CountCodePoints(entry.token);
  }
  Hold(choice, JsonBytes(entry));
  choice.held_logprobs.emplace_back(start, std::move(entry));
}

// A token's logprobs go out with the text that it begins: what a stop string cuts off never shows.
void Generation::ReleaseLogprobs(Choice& choice, bool all) {
  auto& held = choice.held_logprobs;
  auto it = held.begin();
  for (; it != held.end() && (all || it->first < choice.shown_bytes); ++it) {
    choice.news.logprobs.push_back(std::move(it->second));
  }
  held.erase(held.begin(), it);
}

void Generation::ShowText(Choice& choice, std::string text) {
  choice.shown_bytes += static_cast<int64_t>(text.size());
  choice.news.text += text;
  Hold(choice, static_cast<int64_t>(text.size()));
  ReleaseLogprobs(choice, false);
}

void Generation::Finish(Choice& choice, FinishReason reason) {
  ShowText(choice, choice.decoder->Finish());
  // After a stop string the tokens of the text that was cut off stay unsaid.
  ReleaseLogprobs(choice, choice.decoder->stop_string() == nullptr);
  choice.held_logprobs.clear();
  choice.finished = true;
  choice.news.finish_reason = reason == FinishReason::kLength ? "length" : "stop";
  Count(services_.metrics, reason == FinishReason::kLength ? Outcome::kLength : Outcome::kStop);
  --unfinished_;
  ObserveEnd(choice);
}

void Generation::WriteChoice(Choice& choice) {
  ChoiceNews& news = choice.news;
  const bool has_news = !news.text.empty() || !news.logprobs.empty() || choice.token_without_text;
  if (choice.final_written || (!has_news && !choice.finished)) return;
  if (exchange_->queued_bytes() > services_.coalesce_bytes) return DropIfTooSlow();
  UsageField field = request_.include_usage ? UsageField::kNull : UsageField::kAbsent;
  Usage usage;
  if (request_.continuous_usage) {
    field = UsageField::kPresent;
    usage = {prompt_tokens_[static_cast<size_t>(news.index / request_.sampling.n)], choice.tokens};
  }
  Send(StreamChunk(head_, news, field, usage));
  news.first = false;
  news.text.clear();
  news.logprobs.clear();
  Hold(choice, -choice.held_bytes);
  for (const auto& [_, entry] : choice.held_logprobs) Hold(choice, JsonBytes(entry));
  choice.token_without_text = false;
  choice.final_written = choice.finished;
}

void Generation::Hold(Choice& choice, int64_t bytes) {
  choice.held_bytes += bytes;
  held_bytes_ += bytes;
}

bool Generation::AnswerIsTooLarge() const {
  // Of a stream only logprobs of tokens without text are left after writing.
  return held_bytes_ > (request_.stream ? services_.output_bytes_max : services_.answer_bytes_max);
}

// What an answer gathers that is not streamed, or a stream of tokens that show no text.
void Generation::BoundHeldBytes() {
  if (done_) return;
  if (AnswerIsTooLarge()) {
    return Fail(
        AnswerTooLarge(request_.stream ? services_.output_bytes_max : services_.answer_bytes_max));
  }
  if (request_.stream || answer_lease_.Resize(std::max<int64_t>(0, held_bytes_ - kFreeAnswerBytes)))
    return;
  Fail(ErrorFromStatus(Status(StatusCode::kOverloaded,
                              "answers that are not streamed hold " +
                                  std::to_string(services_.answers.bytes_max()) +
                                  " bytes in this server; try again, or with 'stream': true")));
}

void Generation::DropIfTooSlow() {
  if (exchange_->queued_bytes() + held_bytes_ <= services_.output_bytes_max) return;
  ++services_.metrics.slow_clients;
  Abandon(Gone::kTooSlow);
  exchange_->Drop();
}

void Generation::OnWritable() {
  if (done_ || !request_.stream) return;
  for (Choice& choice : choices_) {
    if (!done_) WriteChoice(choice);
  }
  EndIfFinished();
}

void Generation::EndIfFinished() {
  if (done_ || unfinished_ > 0) return;
  const bool held = std::any_of(choices_.begin(), choices_.end(),
                                [](const Choice& c) { return !c.final_written; });
  if (request_.stream && held) return;  // OnWritable comes back
  if (!request_.stream) {
    std::vector<ChoiceNews> all;
    for (Choice& choice : choices_) all.push_back(std::move(choice.news));
    ++services_.metrics.responses[200];
    HttpResponse response{.body = FullAnswer(head_, all, TotalUsage()), .headers = headers_};
    answer_lease_.Resize(
        std::max<int64_t>(0, static_cast<int64_t>(response.body.size()) - kFreeAnswerBytes));
    response.lease = std::move(answer_lease_);
    WriteLog([](RequestRecord&) {});
    exchange_->Respond(std::move(response));
  } else {
    if (request_.include_usage) Send(UsageChunk(head_, TotalUsage()));
    WriteLog([](RequestRecord&) {});
    exchange_->Write("data: [DONE]\n\n");
    exchange_->EndStream();
  }
  done_ = true;
}

void Generation::Send(const std::string& json) {
  exchange_->Write("data: " + json + "\n\n");
  last_sent_ = std::chrono::steady_clock::now();
}

void Generation::KeepAlive(Time silent_since) {
  if (done_ || !head_sent_ || last_sent_ > silent_since || exchange_->queued_bytes() > 0) return;
  exchange_->Write(": keep-alive\n\n");
  last_sent_ = std::chrono::steady_clock::now();
}

Usage Generation::TotalUsage() const {
  Usage usage;
  for (const int64_t tokens : prompt_tokens_) usage.prompt_tokens += tokens;
  for (const Choice& choice : choices_) usage.completion_tokens += choice.tokens;
  return usage;
}

void Generation::AbortAll() {
  const int n = request_.sampling.n;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const auto begin = choices_.begin() + static_cast<std::ptrdiff_t>(i) * n;
    // Aborting what has ended would be a message for nothing.
    if (std::none_of(begin, begin + n, [](const Choice& c) { return !c.finished; })) continue;
    try {
      services_.backend.Abort(ids_[i]);
    } catch (const std::exception&) {  // it is computed to its end then, for nobody
    }
  }
  ids_.clear();
}

RequestRecord Generation::Record(Time now) const {
  RequestRecord record{
      .path = head_.endpoint == Endpoint::kChat ? "/v1/chat/completions" : "/v1/completions",
      .id = head_.id,
      .client_id = client_id_,
      .model = request_.model,
      .total_ms = Milliseconds(now - received_),
      .stream = request_.stream,
      .ignored = request_.ignored};
  if (prompt_tokens_.empty()) return record;
  const Usage usage = TotalUsage();
  record.prompt_tokens = usage.prompt_tokens;
  record.cached_tokens = 0;  // no prefix is kept between requests
  record.completion_tokens = usage.completion_tokens;
  std::optional<Time> first;
  std::chrono::steady_clock::duration decoding{};
  int64_t decoded = 0;
  for (const Choice& choice : choices_) {
    if (choice.finished) AddReason(choice.news.finish_reason, &record);
    if (choice.tokens == 0) continue;
    first = std::min(first.value_or(choice.first_token), choice.first_token);
    decoding += choice.last_token - choice.first_token;
    decoded += choice.tokens - 1;
  }
  if (started_) record.queue_ms = std::max(0.0, Milliseconds(*started_ - submitted_));
  if (first) record.ttft_ms = Milliseconds(*first - received_);
  if (decoded > 0) record.tpot_ms = Milliseconds(decoding) / static_cast<double>(decoded);
  return record;
}

template <typename Complete>
void Generation::WriteLog(Complete complete) noexcept {
  if (std::exchange(logged_, true)) return;
  WriteOrLose(services_.log, [&] {
    RequestRecord record = Record(std::chrono::steady_clock::now());
    complete(record);
    return RequestLine(record);
  });
}

void Generation::OnGone() { Abandon(Gone::kLeft); }

void Generation::Abandon(Gone why) {
  if (done_) return;
  done_ = true;
  WriteLog([&](RequestRecord& record) {
    if (unfinished_ > 0 || choices_.empty()) AddReason("abort", &record);
    record.status = head_sent_ ? 200 : 499;
    record.client_gone = why == Gone::kLeft;
    record.slow_client = why == Gone::kTooSlow;
  });
  AbortAll();
  for (const Choice& choice : choices_) {
    if (!choice.finished) Count(services_.metrics, Outcome::kAbort);
  }
}

void Generation::GiveUp(const std::exception& why) {
  try {
    if (!done_)
      return Fail(ErrorFromStatus(Internal(std::string("internal error: ") + why.what())));
  } catch (const std::exception&) {
  }
  done_ = true;
  exchange_->Drop();
}

void Generation::Fail(const ApiError& error) {
  if (done_) return;
  done_ = true;
  WriteLog([&](RequestRecord& record) {
    if (unfinished_ > 0) AddReason("error", &record);
    record.status = head_sent_ ? 200 : error.status;
    record.error = error;
  });
  AbortAll();
  for (const Choice& choice : choices_) {
    if (!choice.finished && error.status >= 500) Count(services_.metrics, Outcome::kError);
  }
  if (head_sent_) {
    Send(ErrorBody(error));
    exchange_->Write("data: [DONE]\n\n");
    exchange_->EndStream();
    return;
  }
  HttpResponse response{.status = error.status, .body = ErrorBody(error), .headers = headers_};
  if (error.status == 429) response.headers.emplace_back("retry-after", "1");
  if (error.status == 503) response.headers.emplace_back("retry-after", "5");
  ++services_.metrics.responses[error.status];
  exchange_->Respond(std::move(response));
}

}  // namespace sixfold::gateway
