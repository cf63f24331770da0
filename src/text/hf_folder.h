// The files around a tokenizer.json: special tokens by role, added tokens and chat templates, in
// the layouts that transformers 4 and 5 write.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

namespace sixfold {

struct HfTokenizerFiles {
  std::string tokenizer_json;
  SpecialTokenTexts special_tokens;
  std::string eos_file;       // that eos_token is read from; "" where there is none
  std::string declared_json;  // further tokens, for sixfold_tokenizer_from_json
  NamedTemplates chat_templates;
  std::optional<bool> add_bos;  // add_bos_token and add_eos_token of tokenizer_config.json
  std::optional<bool> add_eos;
};

// Reads them. kInvalidFile names the file and what is wrong. Only tokenizer.json must be there.
Result<HfTokenizerFiles> ReadHfTokenizerFiles(const std::string& folder);

}  // namespace sixfold
