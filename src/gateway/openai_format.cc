#include "gateway/openai_format.h"

#include <algorithm>
#include <unordered_set>

#include "gateway/json_writer.h"

namespace sixfold::gateway {
namespace {

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

// Token text as a key of completions' top_logprobs: parts of a UTF-8 sequence are written
// bytes:\xNN, so that two of them never fall together.
std::string TokenName(const std::string& bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  if (IsUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const unsigned char c : bytes) (name += "\\x").append({kHex[c >> 4], kHex[c & 15]});
  return name;
}

// JSON has no minus infinity, the logarithm of a token that a bias forbade; clients know this
// number for it.
float Shown(float logprob) { return std::max(logprob, -9999.0f); }

void WriteChatToken(JsonWriter& out, const std::string& bytes, float logprob) {
  out.Key("token").String(bytes).Key("logprob").Float(Shown(logprob)).Key("bytes").BeginArray();
  for (const unsigned char c : bytes) out.Int(c);
  out.EndArray();
}

void WriteChatLogprobs(JsonWriter& out, const std::vector<LogprobEntry>& entries) {
  out.BeginObject().Key("content").BeginArray();
  for (const LogprobEntry& entry : entries) {
    out.BeginObject();
    WriteChatToken(out, entry.token, entry.logprob);
    out.Key("top_logprobs").BeginArray();
    for (const auto& [token, logprob] : entry.top) {
      out.BeginObject();
      WriteChatToken(out, token, logprob);
      out.EndObject();
    }
    out.EndArray().EndObject();
  }
  out.EndArray().Key("refusal").Null().EndObject();
}

void WriteCompletionLogprobs(JsonWriter& out, const std::vector<LogprobEntry>& entries) {
  out.BeginObject().Key("tokens").BeginArray();
  for (const LogprobEntry& entry : entries) out.String(TokenName(entry.token));
  out.EndArray().Key("token_logprobs").BeginArray();
  for (const LogprobEntry& entry : entries) out.Float(Shown(entry.logprob));
  out.EndArray().Key("top_logprobs").BeginArray();
  for (const LogprobEntry& entry : entries) {
    // The sampled token is always there, as the API says: up to logprobs + 1 members.
    std::unordered_set<std::string> seen;
    out.BeginObject();
    for (const auto& [token, logprob] : entry.top) {
      const std::string name = TokenName(token);
      if (seen.insert(name).second) out.Key(name).Float(Shown(logprob));
    }
    const std::string name = TokenName(entry.token);
    if (!seen.contains(name)) out.Key(name).Float(Shown(entry.logprob));
    out.EndObject();
  }
  out.EndArray().Key("text_offset").BeginArray();
  for (const LogprobEntry& entry : entries) out.Int(entry.text_offset);
  out.EndArray().EndObject();
}

void WriteLogprobs(JsonWriter& out, Endpoint endpoint, const ChoiceNews& news) {
  out.Key("logprobs");
  if (!news.with_logprobs) {
    out.Null();
  } else if (endpoint == Endpoint::kChat) {
    WriteChatLogprobs(out, news.logprobs);
  } else {
    WriteCompletionLogprobs(out, news.logprobs);
  }
}

void WriteFinish(JsonWriter& out, const ChoiceNews& news) {
  out.Key("finish_reason");
  news.finish_reason ? out.String(news.finish_reason) : out.Null();
  if (const auto* text = std::get_if<std::string>(&news.stop_reason)) {
    out.Key("stop_reason").String(*text);
  } else if (const auto* token = std::get_if<TokenId>(&news.stop_reason)) {
    out.Key("stop_reason").Int(*token);
  } else if (news.finish_reason) {
    out.Key("stop_reason").Null();
  }
}

void WriteUsage(JsonWriter& out, const Usage& usage) {
  out.BeginObject();
  out.Key("prompt_tokens").Int(usage.prompt_tokens);
  out.Key("completion_tokens").Int(usage.completion_tokens);
  out.Key("total_tokens").Int(usage.prompt_tokens + usage.completion_tokens);
  out.Key("prompt_tokens_details").BeginObject().Key("cached_tokens").Int(0).EndObject();
  out.EndObject();
}

void WriteHead(JsonWriter& out, const AnswerHead& head, const char* object) {
  out.BeginObject().Key("id").String(head.id).Key("object").String(object).Key("created").Int(
      head.created);
  out.Key("model").String(head.model).Key("system_fingerprint");
  head.fingerprint.empty() ? out.Null() : out.String(head.fingerprint);
}

const char* ChunkObject(Endpoint endpoint) {
  return endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion";
}

void WriteModel(JsonWriter& out, const ModelCard& card, const std::string& name) {
  out.BeginObject().Key("id").String(name).Key("object").String("model").Key("created").Int(
      card.created);
  out.Key("owned_by").String("sixfold").Key("root").String(card.root).Key("parent").Null();
  out.Key("max_model_len").Int(card.max_model_len).EndObject();
}

}  // namespace

std::string StreamChunk(const AnswerHead& head, const ChoiceNews& news, UsageField usage_field,
                        const Usage& usage) {
  JsonWriter out;
  WriteHead(out, head, ChunkObject(head.endpoint));
  out.Key("choices").BeginArray().BeginObject().Key("index").Int(news.index);
  if (head.endpoint == Endpoint::kChat) {
    out.Key("delta").BeginObject();
    if (news.first) out.Key("role").String("assistant");
    if (news.first || !news.text.empty()) out.Key("content").String(news.text);
    out.EndObject();
  } else {
    out.Key("text").String(news.text);
  }
  WriteLogprobs(out, head.endpoint, news);
  WriteFinish(out, news);
  out.EndObject().EndArray();
  if (usage_field == UsageField::kNull) out.Key("usage").Null();
  if (usage_field == UsageField::kPresent) {
    out.Key("usage");
    WriteUsage(out, usage);
  }
  out.EndObject();
  return std::move(out).Take();
}

std::string UsageChunk(const AnswerHead& head, const Usage& usage) {
  JsonWriter out;
  WriteHead(out, head, ChunkObject(head.endpoint));
  out.Key("choices").BeginArray().EndArray().Key("usage");
  WriteUsage(out, usage);
  out.EndObject();
  return std::move(out).Take();
}

std::string FullAnswer(const AnswerHead& head, const std::vector<ChoiceNews>& choices,
                       const Usage& usage) {
  JsonWriter out;
  const bool chat = head.endpoint == Endpoint::kChat;
  WriteHead(out, head, chat ? "chat.completion" : "text_completion");
  out.Key("choices").BeginArray();
  for (const ChoiceNews& choice : choices) {
    out.BeginObject().Key("index").Int(choice.index);
    if (chat) {
      out.Key("message")
          .BeginObject()
          .Key("role")
          .String("assistant")
          .Key("content")
          .String(choice.text);
      out.Key("refusal").Null().EndObject();
    } else {
      out.Key("text").String(choice.text);
    }
    WriteLogprobs(out, head.endpoint, choice);
    WriteFinish(out, choice);
    out.EndObject();
  }
  out.EndArray().Key("usage");
  WriteUsage(out, usage);
  out.EndObject();
  return std::move(out).Take();
}

std::string ModelListBody(const ModelCard& card) {
  JsonWriter out;
  out.BeginObject().Key("object").String("list").Key("data").BeginArray();
  for (const std::string& name : card.names) WriteModel(out, card, name);
  out.EndArray().EndObject();
  return std::move(out).Take();
}

std::string ModelBody(const ModelCard& card, const std::string& name) {
  JsonWriter out;
  WriteModel(out, card, name);
  return std::move(out).Take();
}

int64_t CountCodePoints(const std::string& text) {
  int64_t count = 0;
  for (const unsigned char c : text) count += (c & 0xc0) != 0x80;
  return count;
}

}  // namespace sixfold::gateway
