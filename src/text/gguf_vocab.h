// A vocabulary as the metadata of a GGUF file holds it, in plain values. Whoever reads the file fills it; neither the
// weights nor the text module knows the other. The comments name the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace sixfold {

struct GgufVocab {
  std::string model;                       // tokenizer.ggml.model: "gpt2", "llama" or "t5"
  std::string pre;                         // tokenizer.ggml.pre; "" where the key is absent
  std::vector<std::string> tokens;         // tokenizer.ggml.tokens
  std::vector<int32_t> token_types;        // tokenizer.ggml.token_type, one a token
  std::vector<float> scores;               // tokenizer.ggml.scores, one a token; "gpt2" needs none
  std::vector<std::string> merges;         // tokenizer.ggml.merges: "left right" ("gpt2")
  std::string precompiled_charsmap;        // tokenizer.ggml.precompiled_charsmap, raw bytes ("t5")
  std::optional<TokenId> bos_id;           // tokenizer.ggml.bos_token_id
  std::optional<TokenId> eos_id;           // tokenizer.ggml.eos_token_id
  std::optional<TokenId> eot_id;           // tokenizer.ggml.eot_token_id: also ends an answer
  std::optional<TokenId> eom_id;           // tokenizer.ggml.eom_token_id: also ends an answer
  std::optional<TokenId> unk_id;           // tokenizer.ggml.unknown_token_id
  std::optional<TokenId> pad_id;           // tokenizer.ggml.padding_token_id
  std::optional<bool> add_bos;             // tokenizer.ggml.add_bos_token; absent: as the model's kind does
  std::optional<bool> add_eos;             // tokenizer.ggml.add_eos_token
  std::optional<bool> add_space_prefix;    // tokenizer.ggml.add_space_prefix; absent: yes for llama and t5
  std::optional<bool> remove_extra_whitespaces;  // tokenizer.ggml.remove_extra_whitespaces ("t5")
  std::string chat_template;               // tokenizer.chat_template; "" where absent
  // tokenizer.chat_template.NAME for each further template.
  std::vector<std::pair<std::string, std::string>> named_chat_templates;
};

}  // namespace sixfold
