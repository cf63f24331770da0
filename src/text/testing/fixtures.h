// What src/text/testdata holds, and vocabularies made on the spot. Paths are relative to the source root, where tests run.
#pragma once

#include <string>
#include <vector>

#include "base/ids.h"
#include "text/gguf_vocab.h"

namespace sixfold::testing {

// A text and what the reference library makes of it.
struct TokenizerRow {
  std::string text;
  std::vector<TokenId> ids;    // with the special tokens that the tokenizer adds
  std::vector<TokenId> plain;  // without; empty where the file has only `ids`
  std::string decoded;         // empty where the file has none
};

std::vector<TokenizerRow> ReadTokenizerRows(const std::string& file);
GgufVocab ReadGgufVocab(const std::string& file);

// A byte-level vocabulary of single bytes, the merges given, and special tokens at the end.
GgufVocab ByteVocab(const std::string& pre, const std::vector<std::string>& merges,
                    const std::vector<std::string>& specials);

}  // namespace sixfold::testing
