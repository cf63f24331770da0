#include "apps/text_loading.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "apps/loading.h"
#include "apps/output.h"
#include "text/chat_template.h"
#include "text/utf8.h"
#include "weights/gguf_metadata.h"
#include "weights/weight_store.h"

namespace sixfold::apps {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTokenizerJsonBytesMax = size_t{256} << 20;
constexpr size_t kTemplateBytesMax = size_t{4} << 20;
// Eight times the largest vocabulary known; bounds what a file can make us hold.
constexpr uint64_t kTokensMax = uint64_t{1} << 21;
constexpr std::string_view kNamedTemplatePrefix = "tokenizer.chat_template.";

Status ReadId(const GgufMetadata& metadata, const char* key, std::optional<TokenId>* id) {
  if (!metadata.Has(key)) return OkStatus();
  SF_ASSIGN_OR_RETURN(const int64_t value, metadata.GetI64(key));
  // -1 and 2^32 - 1 are how converters write "none".
  if (value == -1 || value == 0xffffffff) return OkStatus();
  if (value < 0 || value >= static_cast<int64_t>(kTokensMax)) {
    return InvalidFile(fmt::format("{}: {} is no token id", key, value));
  }
  *id = static_cast<TokenId>(value);
  return OkStatus();
}

Status ReadFlag(const GgufMetadata& metadata, const char* key, std::optional<bool>* flag) {
  if (!metadata.Has(key)) return OkStatus();
  SF_ASSIGN_OR_RETURN(*flag, metadata.GetBool(key));
  return OkStatus();
}

Status ReadText(const GgufMetadata& metadata, std::string_view key, std::string* text) {
  SF_ASSIGN_OR_RETURN(const std::string_view value, metadata.GetStringOr(key, ""));
  *text = value;
  return OkStatus();
}

Status ReadTexts(const GgufMetadata& metadata, const char* key, std::vector<std::string>* texts) {
  if (!metadata.Has(key)) return OkStatus();
  SF_ASSIGN_OR_RETURN(const std::vector<std::string_view> values, metadata.GetStrings(key));
  texts->assign(values.begin(), values.end());
  return OkStatus();
}

Status ReadLists(const GgufMetadata& metadata, GgufVocab* vocab) {
  for (const char* key :
       {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"}) {
    if (metadata.Count(key) > kTokensMax) {
      return InvalidFile(fmt::format("{}: {} entries, at most {} were expected", key,
                                     metadata.Count(key), kTokensMax));
    }
  }
  if (metadata.Count("tokenizer.ggml.merges") > 2 * kTokensMax) {
    return InvalidFile(fmt::format("tokenizer.ggml.merges: {} entries, at most {} were expected",
                                   metadata.Count("tokenizer.ggml.merges"), 2 * kTokensMax));
  }
  SF_RETURN_IF_ERROR(ReadTexts(metadata, "tokenizer.ggml.tokens", &vocab->tokens));
  SF_RETURN_IF_ERROR(ReadTexts(metadata, "tokenizer.ggml.merges", &vocab->merges));
  if (metadata.Has("tokenizer.ggml.token_type")) {
    SF_ASSIGN_OR_RETURN(const std::vector<int64_t> types,
                        metadata.GetI64s("tokenizer.ggml.token_type"));
    for (const int64_t type : types) vocab->token_types.push_back(static_cast<int32_t>(type));
  }
  if (metadata.Has("tokenizer.ggml.scores")) {
    SF_ASSIGN_OR_RETURN(vocab->scores, metadata.GetF32s("tokenizer.ggml.scores"));
  }
  if (metadata.Has("tokenizer.ggml.precompiled_charsmap")) {
    SF_ASSIGN_OR_RETURN(const std::vector<int64_t> bytes,
                        metadata.GetI64s("tokenizer.ggml.precompiled_charsmap"));
    for (const int64_t byte : bytes) vocab->precompiled_charsmap += static_cast<char>(byte);
  }
  return OkStatus();
}

Status HalfAVocabulary(const char* missing, const char* there) {
  return InvalidFile(
      fmt::format("tokenizer.ggml.{} is missing, and tokenizer.ggml.{} is there: convert the model "
                  "again, or name its tokenizer "
                  "with --tokenizer",
                  missing, there));
}

Status ReadTemplates(const GgufMetadata& metadata, GgufVocab* vocab) {
  SF_RETURN_IF_ERROR(ReadText(metadata, "tokenizer.chat_template", &vocab->chat_template));
  for (const GgufEntry& entry : metadata.entries()) {
    if (entry.key.rfind(kNamedTemplatePrefix, 0) != 0) continue;
    SF_ASSIGN_OR_RETURN(const std::string_view source, metadata.GetString(entry.key));
    vocab->named_chat_templates.emplace_back(entry.key.substr(kNamedTemplatePrefix.size()), source);
  }
  return OkStatus();
}

}  // namespace

Result<std::optional<GgufVocab>> ReadGgufVocab(const GgufMetadata& metadata) {
  GgufVocab vocab;
  SF_RETURN_IF_ERROR(ReadText(metadata, "tokenizer.ggml.model", &vocab.model));
  const bool has_tokens = metadata.Has("tokenizer.ggml.tokens");
  const bool has_model = !vocab.model.empty() && vocab.model != "no_vocab" && vocab.model != "none";
  if (has_tokens && vocab.model.empty()) return HalfAVocabulary("model", "tokens");
  if (has_model && !has_tokens) return HalfAVocabulary("tokens", "model");
  if (!has_tokens || !has_model) return std::optional<GgufVocab>();
  SF_RETURN_IF_ERROR(ReadText(metadata, "tokenizer.ggml.pre", &vocab.pre));
  SF_RETURN_IF_ERROR(ReadLists(metadata, &vocab));
  SF_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.bos_token_id", &vocab.bos_id));
  SF_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.eos_token_id", &vocab.eos_id));
  SF_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.eot_token_id", &vocab.eot_id));
  SF_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.eom_token_id", &vocab.eom_id));
  SF_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.unknown_token_id", &vocab.unk_id));
  SF_RETURN_IF_ERROR(ReadId(metadata, "tokenizer.ggml.padding_token_id", &vocab.pad_id));
  SF_RETURN_IF_ERROR(ReadFlag(metadata, "tokenizer.ggml.add_bos_token", &vocab.add_bos));
  SF_RETURN_IF_ERROR(ReadFlag(metadata, "tokenizer.ggml.add_eos_token", &vocab.add_eos));
  SF_RETURN_IF_ERROR(
      ReadFlag(metadata, "tokenizer.ggml.add_space_prefix", &vocab.add_space_prefix));
  SF_RETURN_IF_ERROR(ReadFlag(metadata, "tokenizer.ggml.remove_extra_whitespaces",
                              &vocab.remove_extra_whitespaces));
  SF_RETURN_IF_ERROR(ReadTemplates(metadata, &vocab));
  return std::optional<GgufVocab>(std::move(vocab));
}

namespace {

Result<std::unique_ptr<Tokenizer>> ReadTokenizer(const std::string& path) {
  std::error_code error;
  const fs::path given(path);
  if (!fs::exists(given, error)) return InvalidFile(path + ": no such file or folder");
  if (given.extension() == ".json") {
    SF_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(path, kTokenizerJsonBytesMax));
    Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromHfJson(json);
    if (!tokenizer.ok()) return tokenizer.status().WithContext(path);
    return tokenizer;
  }
  const bool folder = fs::is_directory(given, error);
  if (folder || given.extension() == ".safetensors") {
    const fs::path home = folder ? given : given.parent_path();
    if (!fs::exists(home / "tokenizer.json", error)) return std::unique_ptr<Tokenizer>();
    return Tokenizer::FromHfFolder(home.empty() ? "." : home.string());
  }
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<WeightStore> store, WeightStore::Open(path));
  if (store->gguf() == nullptr) return std::unique_ptr<Tokenizer>();
  Result<std::optional<GgufVocab>> vocab = ReadGgufVocab(*store->gguf());
  if (!vocab.ok()) return vocab.status().WithContext(path);
  if (!vocab->has_value()) return std::unique_ptr<Tokenizer>();
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromGguf(**vocab);
  if (!tokenizer.ok()) return tokenizer.status().WithContext(path);
  return tokenizer;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> FindTokenizer(const std::string& path) {
  SF_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, ReadTokenizer(path));
  if (tokenizer != nullptr) {
    for (const std::string& warning : tokenizer->warnings())
      Remark(fmt::format("warning: {}: {}", path, warning));
  }
  return tokenizer;
}

namespace {

// Peak memory of loading in multiples of the text: tokenizer.json (9 to 14.5 were measured); the
// lists of a GGUF vocabulary with merges (10 to 13.5), without (15 to 17), of a unigram model with
// its map of characters (45).
constexpr int64_t kPerJsonByte = 15, kPerMergesByte = 14, kPerPiecesByte = 18, kPerUnigramByte = 48;

int64_t VocabularyBytes(const GgufMetadata& metadata) {
  int64_t bytes = 0;
  for (const GgufEntry& entry : metadata.entries()) {
    if (entry.key.rfind("tokenizer.ggml.", 0) == 0)
      bytes += static_cast<int64_t>(metadata.Raw(entry).size());
  }
  return bytes * (metadata.Has("tokenizer.ggml.precompiled_charsmap") ? kPerUnigramByte
                  : metadata.Has("tokenizer.ggml.merges")             ? kPerMergesByte
                                                                      : kPerPiecesByte);
}

}  // namespace

Result<int64_t> TokenizerBytes(const Options& options, const std::string& model_path) {
  const std::string& named = options.Text("tokenizer");
  const fs::path path = named != "auto" && !named.empty() ? named : model_path;
  std::error_code error;
  fs::path json = path;
  if (fs::is_directory(path, error)) json = path / "tokenizer.json";
  if (path.extension() == ".safetensors") json = path.parent_path() / "tokenizer.json";
  if (json.extension() == ".json") {
    const auto bytes = fs::file_size(json, error);
    return error ? 0 : static_cast<int64_t>(bytes) * kPerJsonByte;
  }
  SF_ASSIGN_OR_RETURN(const std::unique_ptr<WeightStore> store, WeightStore::Open(path));
  return store->gguf() == nullptr ? 0 : VocabularyBytes(*store->gguf());
}

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  SF_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, FindTokenizer(path));
  if (tokenizer == nullptr) {
    return InvalidFile(
        path + ": holds no tokenizer (a folder needs tokenizer.json, a .gguf its vocabulary)");
  }
  return tokenizer;
}

Result<std::unique_ptr<Tokenizer>> TokenizerFor(const Options& options,
                                                const std::string& model_path) {
  const std::string& named = options.Text("tokenizer");
  const bool given = named != "auto" && !named.empty();
  SF_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                      given ? LoadTokenizer(named) : FindTokenizer(model_path));
  if (tokenizer != nullptr) SF_RETURN_IF_ERROR(ApplyAddBos(options, tokenizer.get()));
  return tokenizer;
}

Status ApplyAddBos(const Options& options, Tokenizer* tokenizer) {
  const std::string& wish = options.Text("add-bos-token");
  if (wish == "auto") return OkStatus();
  const Status done = tokenizer->SetAddBos(wish == "true" ? AddBos::kYes : AddBos::kNo);
  return done.ok() ? done : done.WithContext(options.Get("add-bos-token").origin.name);
}

Result<std::optional<std::string>> ChatTemplateFrom(const Options& options) {
  const std::string& given = options.Text("chat-template");
  if (given == "auto" || given.empty()) return std::optional<std::string>();
  std::string source = given;
  const bool is_source =
      given.find("{{") != std::string::npos || given.find("{%") != std::string::npos;
  if (!is_source) {
    SF_ASSIGN_OR_RETURN(source, ReadTextFile(given, kTemplateBytesMax));
  }
  const Status valid = CheckChatTemplate(source);
  if (!valid.ok())
    return valid.WithContext(is_source ? options.Get("chat-template").origin.name : given);
  return std::optional<std::string>(std::move(source));
}

Result<std::vector<TokenId>> PromptTokens(const Options& options, const Tokenizer* tokenizer,
                                          int64_t vocab) {
  std::vector<int64_t> ids = options.Integers("prompt-tokens");
  const bool text = options.IsGiven("prompt");
  if (text) {
    if (tokenizer == nullptr) {
      return InvalidArgument(
          "the model has no tokenizer for --prompt; give --prompt-tokens or --tokenizer");
    }
    SF_ASSIGN_OR_RETURN(
        const std::vector<TokenId> encoded,
        tokenizer->Encode(options.Text("prompt"), AddSpecial::kYes));
    ids.assign(encoded.begin(), encoded.end());
    if (ids.empty())
      return InvalidArgument("--prompt is empty, and the tokenizer adds no token of its own");
  }
  SF_RETURN_IF_ERROR(CheckTokens(ids, vocab, text ? "--prompt" : "--prompt-tokens"));
  return std::vector<TokenId>(ids.begin(), ids.end());
}

}  // namespace sixfold::apps
