// The files around a tokenizer.json: special tokens by role and chat templates, in the layouts that transformers 4 and 5 write.
#pragma once

#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

namespace sixfold {

struct HfTokenizerFiles {
  std::string tokenizer_json;
  SpecialTokenTexts special_tokens;
  NamedTemplates chat_templates;
};

// Reads them. kInvalidFile names the file and what is wrong. Only tokenizer.json must be there.
Result<HfTokenizerFiles> ReadHfTokenizerFiles(const std::string& folder);

}  // namespace sixfold
