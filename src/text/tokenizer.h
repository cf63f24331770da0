// Text to token ids and back, for HF tokenizer folders and for vocabularies embedded in GGUF files. The ids are those of HF's
// `tokenizers`, which does the work behind text-rs/include/sixfold_text.h; the way back is a table of bytes held here, so
// that a stream of tokens costs no call across the language border.
// Thread rule: const methods may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "text/gguf_vocab.h"
#include "text/utf8.h"

namespace sixfold {

// Whether the tokens that the tokenizer's post-processor asks for (BOS, sometimes EOS) are put around the text.
enum class AddSpecial : uint8_t { kNo, kYes };
// Whether special tokens written in the text become their ids, or are read like any other text.
enum class ParseSpecial : uint8_t { kNo, kYes };
// Whether special tokens are left out of decoded text.
enum class SkipSpecial : uint8_t { kNo, kYes };

// Whether texts are opened with the BOS token, whatever the files say.
enum class AddBos : uint8_t { kNo, kYes };

// The special tokens by their role ("bos_token", "eos_token", …), as transformers passes them to a chat template.
using SpecialTokenTexts = std::vector<std::pair<std::string, std::string>>;
// Chat templates by name; "default" is the one without a name.
using NamedTemplates = std::vector<std::pair<std::string, std::string>>;

// A token that ends an answer.
struct EndToken {
  TokenId id = 0;
  std::string source;  // what says so: a key of a file, or what a template does
};

class Tokenizer {
 public:
  // Reads `folder`/tokenizer.json and, where they are there, tokenizer_config.json,
  // special_tokens_map.json, added_tokens.json and the chat templates, in the layouts of
  // transformers 4 and 5. kInvalidFile names the file and what is wrong with it.
  static Result<std::unique_ptr<Tokenizer>> FromHfFolder(const std::string& folder);
  // A tokenizer.json alone: no BOS, EOS or templates are known.
  static Result<std::unique_ptr<Tokenizer>> FromHfJson(std::string_view tokenizer_json);
  // kInvalidFile names a key that decides ids and is missing.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocab& vocab);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument for text that is not UTF-8.
  Result<std::vector<TokenId>> Encode(std::string_view text, AddSpecial add,
                                      ParseSpecial parse = ParseSpecial::kYes) const;
  // Always valid UTF-8; bytes that make no character come out as U+FFFD. Ids without a token add nothing.
  std::string Decode(std::span<const TokenId> ids, SkipSpecial skip) const;

  // The bytes that a token adds to a text it does not open: perhaps a part of a character. "" for ids without a token.
  std::string_view TokenBytes(TokenId id) const { return Piece(id, pieces_); }
  // The same for a token that opens a text: some tokenizers drop a leading space there.
  std::string_view FirstTokenBytes(TokenId id) const { return Piece(id, first_.count == 0 ? pieces_ : first_); }
  // The token as the vocabulary spells it ("Ġhello", "▁hello", "<|im_end|>").
  std::string TokenText(TokenId id) const;
  std::optional<TokenId> FindToken(std::string_view token_text) const;

  int32_t vocab_size() const { return vocab_size_; }  // largest id + 1
  bool HasToken(TokenId id) const { return (Flags(id) & kPresent) != 0; }
  bool IsSpecial(TokenId id) const { return (Flags(id) & kSpecial) != 0; }
  // Found in a text as a whole, special or not.
  bool IsAdded(TokenId id) const { return (Flags(id) & kAdded) != 0; }
  std::optional<TokenId> bos_id() const { return bos_id_; }
  std::optional<TokenId> eos_id() const { return eos_id_; }
  // Every token that the files name as the end of an answer, eos_id() first, and where; a token may
  // be named twice. text/turn_end.h finds those that only templates know.
  const std::vector<EndToken>& end_tokens() const { return end_tokens_; }
  std::vector<TokenId> eos_ids() const;  // the same, each once

  // Whether Encode with AddSpecial::kYes puts BOS before, or EOS after, a text.
  bool AddsBos() const;
  bool AddsEos() const;
  // What tokenizer_config.json says of it. transformers 5 passes over it where there is a
  // tokenizer.json, as we do.
  std::optional<bool> wants_bos() const { return wants_bos_; }
  std::optional<bool> wants_eos() const { return wants_eos_; }
  // kInvalidArgument for kYes without a BOS token. Not while others use the tokenizer.
  Status SetAddBos(AddBos add);

  // What in the files was missing and had to be guessed, a sentence each.
  const std::vector<std::string>& warnings() const { return warnings_; }

  const SpecialTokenTexts& special_tokens() const { return special_tokens_; }
  const NamedTemplates& chat_templates() const { return chat_templates_; }
  // The template of that name, or nullptr.
  const std::string* FindChatTemplate(std::string_view name = "default") const;

  // For decoders (text/stream_decoder.h).
  Utf8Repair utf8_repair() const { return utf8_repair_; }
  // Up to this many copies of strip_byte() are dropped at the start of a decoded text.
  uint32_t strip_count() const { return strip_count_; }
  char strip_byte() const { return strip_byte_; }

  // Decoding by HF's own decoder, the oracle for Decode. Tests only.
  Result<std::string> ReferenceDecode(std::span<const TokenId> ids, SkipSpecial skip) const;

 private:
  // Strings laid end to end in memory of the Rust side: string i is data[offsets[i] .. offsets[i + 1]).
  struct Table {
    const char* data = nullptr;
    const uint64_t* offsets = nullptr;
    size_t count = 0;
  };
  static constexpr uint8_t kPresent = 1;  // sixfold_token_flags
  static constexpr uint8_t kSpecial = 2;
  static constexpr uint8_t kAdded = 4;

  explicit Tokenizer(void* handle);
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view tokenizer_json,
                                                     std::string_view declared);
  static Result<std::unique_ptr<Tokenizer>> Make(int code, void* handle, std::string error);
  uint8_t Flags(TokenId id) const { return id < 0 || id >= vocab_size_ ? 0 : flags_[id]; }
  static std::string_view Piece(TokenId id, const Table& table) {
    if (id < 0 || static_cast<size_t>(id) >= table.count) return {};
    return {table.data + table.offsets[id], static_cast<size_t>(table.offsets[id + 1] - table.offsets[id])};
  }
  void SetRole(const std::string& role, const std::string& token_text);

  void* handle_;  // sixfold_tokenizer, owned; opaque here so that the C header stays in the .cc file
  int32_t vocab_size_ = 0;
  const uint8_t* flags_ = nullptr;
  Table pieces_;
  Table first_;
  Utf8Repair utf8_repair_ = Utf8Repair::kPerPart;
  uint32_t strip_count_ = 0;
  char strip_byte_ = 0;
  std::optional<TokenId> bos_id_;
  std::optional<TokenId> eos_id_;
  std::vector<EndToken> end_tokens_;
  std::optional<bool> wants_bos_;
  std::optional<bool> wants_eos_;
  std::vector<std::string> warnings_;
  SpecialTokenTexts special_tokens_;
  NamedTemplates chat_templates_;
};

}  // namespace sixfold
