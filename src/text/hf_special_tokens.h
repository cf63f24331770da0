// Tokens that a model folder declares beside tokenizer.json: in tokenizer_config.json,
// special_tokens_map.json and added_tokens.json. What counts where, and in which order tokens are
// added, is as transformers 5.24 has it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

namespace sixfold {

struct HfDeclaredTokens {
  SpecialTokenTexts roles;
  std::string eos_file;  // that eos_token is read from; "" where there is none
  std::string json;      // for sixfold_tokenizer_from_json
};

// The files' contents; an empty object for a file that is not there.
struct HfTokenFiles {
  const nlohmann::ordered_json& config;  // tokenizer_config.json
  const nlohmann::ordered_json&
      special_tokens_map;                      // read where the config has no added_tokens_decoder
  const nlohmann::ordered_json& added_tokens;  // the same
};

// kInvalidFile names the file that is wrong.
Result<HfDeclaredTokens> DeclaredTokens(const HfTokenFiles& files);

}  // namespace sixfold
