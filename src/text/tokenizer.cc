#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>

#include "text/hf_folder.h"
#include "text/rust_call.h"

namespace sixfold {
namespace {

sixfold_tokenizer* Handle(void* handle) { return static_cast<sixfold_tokenizer*>(handle); }

// Strings of C++ laid end to end, as the C ABI takes them.
struct JoinedStrings {
  explicit JoinedStrings(const std::vector<std::string>& strings) {
    offsets.reserve(strings.size() + 1);
    offsets.push_back(0);
    for (const std::string& s : strings) {
      data += s;
      offsets.push_back(data.size());
    }
  }
  sixfold_strings get() const { return {SliceOf(data), offsets.data(), offsets.size() - 1}; }

  std::string data;
  std::vector<uint64_t> offsets;
};

int32_t Choice(std::optional<bool> value) { return value ? (*value ? 1 : 0) : -1; }

// What a GGUF vocabulary lacks and can be used without, if perhaps with other ids than the model
// was trained with.
std::vector<std::string> GuessesOf(const GgufVocab& vocab) {
  std::vector<std::string> guesses;
  if (vocab.model == "gpt2" && vocab.pre.empty()) {
    guesses.push_back(
        "tokenizer.ggml.pre is missing: text is split as GPT-2 splits it, which may give other "
        "tokens than the model "
        "was trained with; convert the model again, or name its tokenizer with --tokenizer");
  }
  if (vocab.model == "llama" && !vocab.bos_id && !vocab.add_bos) {
    guesses.push_back(
        "tokenizer.ggml.bos_token_id and tokenizer.ggml.add_bos_token are missing: prompts begin "
        "without a BOS token, "
        "which most models with such a vocabulary expect");
  }
  return guesses;
}

}  // namespace

Tokenizer::Tokenizer(void* handle) : handle_(handle) {
  sixfold_token_table table;
  sixfold_tokenizer_table(Handle(handle_), &table);
  const auto table_of = [](const sixfold_strings& strings) {
    return Table{reinterpret_cast<const char*>(strings.data.data), strings.offsets, strings.count};
  };
  vocab_size_ = static_cast<int32_t>(table.vocab_size);
  flags_ = table.flags;
  pieces_ = table_of(table.pieces);
  first_ = table_of(table.first);
  utf8_repair_ = table.repair_per_byte != 0 ? Utf8Repair::kPerByte : Utf8Repair::kPerPart;
  strip_count_ = table.strip_count;
  strip_byte_ = static_cast<char>(table.strip_byte);
}

Tokenizer::~Tokenizer() { sixfold_tokenizer_free(Handle(handle_)); }

Result<std::unique_ptr<Tokenizer>> Tokenizer::Make(int code, void* handle, std::string error) {
  // The library panics on some damaged files instead of refusing them; that is the file's fault all the same.
  if (code == SIXFOLD_TEXT_INTERNAL) return InvalidFile("the tokenizers library gave up on it: " + error);
  if (code != SIXFOLD_TEXT_OK) return StatusOf(code, error, StatusCode::kInvalidFile);
  return std::unique_ptr<Tokenizer>(new Tokenizer(handle));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view tokenizer_json,
                                                       std::string_view declared) {
  sixfold_tokenizer* handle = nullptr;
  RustBuffer error;
  const int code =
      sixfold_tokenizer_from_json(SliceOf(tokenizer_json), SliceOf(declared), &handle, error.get());
  return Make(code, handle, std::string(error.view()));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromHfJson(std::string_view tokenizer_json) {
  return FromJson(tokenizer_json, "");
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromHfFolder(const std::string& folder) {
  SF_ASSIGN_OR_RETURN(HfTokenizerFiles files, ReadHfTokenizerFiles(folder));
  auto made = FromJson(files.tokenizer_json, files.declared_json);
  if (!made.ok()) return made.status().WithContext(folder + "/tokenizer.json");
  std::unique_ptr<Tokenizer> tokenizer = std::move(made).value();
  tokenizer->chat_templates_ = std::move(files.chat_templates);
  for (const auto& [role, text] : files.special_tokens) tokenizer->SetRole(role, text);
  for (EndToken& end : tokenizer->end_tokens_) end.source = "eos_token of " + files.eos_file;
  tokenizer->wants_bos_ = files.add_bos;
  tokenizer->wants_eos_ = files.add_eos;
  return tokenizer;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocab& vocab) {
  const JoinedStrings tokens(vocab.tokens);
  const JoinedStrings merges(vocab.merges);
  const bool sentence_piece = vocab.model == "llama" || vocab.model == "t5";
  sixfold_gguf_vocab raw;
  raw.model = SliceOf(vocab.model);
  raw.pre = SliceOf(vocab.pre);
  raw.tokens = tokens.get();
  raw.merges = merges.get();
  raw.types = vocab.token_types.data();
  raw.types_count = vocab.token_types.size();
  raw.scores = vocab.scores.data();
  raw.scores_count = vocab.scores.size();
  raw.charsmap = SliceOf(vocab.precompiled_charsmap);
  raw.bos_id = vocab.bos_id.value_or(-1);
  raw.eos_id = vocab.eos_id.value_or(-1);
  raw.unk_id = vocab.unk_id.value_or(-1);
  raw.add_bos = Choice(vocab.add_bos);
  raw.add_eos = Choice(vocab.add_eos);
  raw.add_space_prefix = vocab.add_space_prefix.value_or(sentence_piece) ? 1 : 0;
  raw.remove_extra_whitespaces = vocab.remove_extra_whitespaces.value_or(false) ? 1 : 0;
  sixfold_tokenizer* handle = nullptr;
  RustBuffer error;
  const int code = sixfold_tokenizer_from_gguf(&raw, &handle, error.get());
  SF_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Make(code, handle, std::string(error.view())));

  const std::pair<const char*, std::optional<TokenId>> roles[] = {{"bos_token", vocab.bos_id},
                                                                  {"eos_token", vocab.eos_id},
                                                                  {"unk_token", vocab.unk_id},
                                                                  {"pad_token", vocab.pad_id}};
  for (const auto& [role, id] : roles) {
    if (id && *id >= 0 && *id < tokenizer->vocab_size()) tokenizer->SetRole(role, tokenizer->TokenText(*id));
  }
  // By id, not by text: a damaged file may hold one text twice.
  const auto known = [&](std::optional<TokenId> id) { return id && tokenizer->HasToken(*id) ? id : std::nullopt; };
  tokenizer->bos_id_ = known(vocab.bos_id);
  tokenizer->eos_id_ = known(vocab.eos_id);
  tokenizer->end_tokens_.clear();
  const std::pair<const char*, std::optional<TokenId>> ends[] = {
      {"tokenizer.ggml.eos_token_id", vocab.eos_id},
      {"tokenizer.ggml.eot_token_id", vocab.eot_id},
      {"tokenizer.ggml.eom_token_id", vocab.eom_id}};
  for (const auto& [key, id] : ends) {
    if (known(id)) tokenizer->end_tokens_.push_back({*id, key});
  }
  tokenizer->warnings_ = GuessesOf(vocab);
  if (!vocab.chat_template.empty()) tokenizer->chat_templates_.emplace_back("default", vocab.chat_template);
  for (const auto& named : vocab.named_chat_templates) tokenizer->chat_templates_.push_back(named);
  return tokenizer;
}

void Tokenizer::SetRole(const std::string& role, const std::string& token_text) {
  special_tokens_.emplace_back(role, token_text);
  const std::optional<TokenId> id = FindToken(token_text);
  if (!id) return;  // a template may still print it
  if (role == "bos_token") bos_id_ = id;
  if (role == "eos_token") {
    eos_id_ = id;
    end_tokens_.assign(1, {*id, "eos_token"});
  }
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, AddSpecial add, ParseSpecial parse) const {
  uint32_t flags = 0;
  if (add == AddSpecial::kYes) flags |= SIXFOLD_ENCODE_ADD_SPECIAL;
  if (parse == ParseSpecial::kYes) flags |= SIXFOLD_ENCODE_PARSE_SPECIAL;
  RustBuffer ids;
  RustBuffer error;
  const int code = sixfold_tokenizer_encode(Handle(handle_), SliceOf(text), flags, ids.get(), error.get());
  if (code != SIXFOLD_TEXT_OK) return StatusOf(code, error.view(), StatusCode::kInvalidArgument);
  std::vector<TokenId> out(ids.view().size() / sizeof(TokenId));
  if (!out.empty()) std::memcpy(out.data(), ids.view().data(), out.size() * sizeof(TokenId));
  return out;
}

std::vector<TokenId> Tokenizer::eos_ids() const {
  std::vector<TokenId> ids;
  for (const EndToken& end : end_tokens_) {
    if (std::find(ids.begin(), ids.end(), end.id) == ids.end()) ids.push_back(end.id);
  }
  return ids;
}

bool Tokenizer::AddsBos() const {
  const auto with = Encode("a", AddSpecial::kYes), without = Encode("a", AddSpecial::kNo);
  if (!bos_id_ || !with.ok() || !without.ok() || with->size() <= without->size()) return false;
  return with->front() == *bos_id_ && (without->empty() || without->front() != *bos_id_);
}

bool Tokenizer::AddsEos() const {
  const auto with = Encode("a", AddSpecial::kYes), without = Encode("a", AddSpecial::kNo);
  if (!eos_id_ || !with.ok() || !without.ok() || with->size() <= without->size()) return false;
  return with->back() == *eos_id_ && (without->empty() || without->back() != *eos_id_);
}

Status Tokenizer::SetAddBos(AddBos add) {
  if (add == AddBos::kYes && !bos_id_)
    return InvalidArgument("the tokenizer has no BOS token to add");
  sixfold_tokenizer_set_bos(Handle(handle_), add == AddBos::kYes ? *bos_id_ : -1);
  return OkStatus();
}

std::string Tokenizer::TokenText(TokenId id) const {
  if (id < 0) return "";
  return std::string(ViewOf(sixfold_tokenizer_token_text(Handle(handle_), static_cast<uint32_t>(id))));
}

std::optional<TokenId> Tokenizer::FindToken(std::string_view token_text) const {
  const int64_t id = sixfold_tokenizer_token_id(Handle(handle_), SliceOf(token_text));
  return id < 0 || id >= vocab_size_ ? std::nullopt : std::optional<TokenId>(static_cast<TokenId>(id));
}

const std::string* Tokenizer::FindChatTemplate(std::string_view name) const {
  for (const auto& [known, text] : chat_templates_) {
    if (known == name) return &text;
  }
  return nullptr;
}

Result<std::string> Tokenizer::ReferenceDecode(std::span<const TokenId> ids, SkipSpecial skip) const {
  const std::vector<uint32_t> raw(ids.begin(), ids.end());
  RustBuffer text;
  RustBuffer error;
  const int code = sixfold_tokenizer_reference_decode(Handle(handle_), raw.data(), raw.size(),
                                                      skip == SkipSpecial::kYes ? 1 : 0, text.get(), error.get());
  if (code != SIXFOLD_TEXT_OK) return StatusOf(code, error.view(), StatusCode::kInvalidArgument);
  return std::string(text.view());
}

}  // namespace sixfold
