// Tokenizers and chat templates for commands: from a Hugging Face folder or out of a GGUF file's
// metadata.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/options.h"
#include "base/ids.h"
#include "base/status.h"
#include "text/tokenizer.h"

namespace sixfold {
class GgufMetadata;
}

namespace sixfold::apps {

// The vocabulary in a GGUF file's metadata, nullopt when it holds none. kInvalidFile names the key
// that is wrong.
Result<std::optional<GgufVocab>> ReadGgufVocab(const GgufMetadata& metadata);

// `path`: a folder with tokenizer.json, that file, or a .gguf. Null when there is no tokenizer at
// the path. What had to be guessed is remarked on stderr.
Result<std::unique_ptr<Tokenizer>> FindTokenizer(const std::string& path);
// The same, kInvalidFile when there is none.
Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);
// Where --tokenizer points, else the model's own; null when that has none.
Result<std::unique_ptr<Tokenizer>> TokenizerFor(const Options& options,
                                                const std::string& model_path);
// --add-bos-token on a tokenizer. kInvalidArgument: there is no BOS token to add.
Status ApplyAddBos(const Options& options, Tokenizer* tokenizer);

// Memory that TokenizerFor will take, its tables on the way to the last one included: an estimate
// from the size of the vocabulary, within a factor of two of what was measured on tokenizers of 32
// to 262 thousand tokens. 0 when there is no tokenizer.
Result<int64_t> TokenizerBytes(const Options& options, const std::string& model_path);

// --prompt as tokens, or --prompt-tokens. tokenizer: null for none. kInvalidArgument: no tokenizer for the text, an empty prompt,
// a token that is no row of the vocabulary.
Result<std::vector<TokenId>> PromptTokens(const Options& options, const Tokenizer* tokenizer, int64_t vocab);

// The source that --chat-template names (a file, or the template itself), nullopt for auto.
Result<std::optional<std::string>> ChatTemplateFrom(const Options& options);

}  // namespace sixfold::apps
