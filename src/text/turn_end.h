// The control tokens that close an assistant's turn, found by rendering one: a file's ids of
// end-of-sequence are often those of the base model ("<|endoftext|>"), while a chat model ends its
// answers with the token that its template closes them with.
#pragma once

#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace sixfold {

// The tokens that `source`, a chat template, puts right behind an answer, and behind an assistant's
// tool calls. Empty where it puts none, closes turns with plain text, or fails. A token that opens
// turns is never among them, though some templates end with one: the model may write it inside of
// its turn.
std::vector<EndToken> TurnEnds(const Tokenizer& tokenizer, std::string_view source);

// Every token that ends an answer: those of the tokenizer's files, then those of `override_source`
// or, where it is empty, of the tokenizer's own chat templates.
std::vector<EndToken> EndTokens(const Tokenizer& tokenizer, std::string_view override_source);

}  // namespace sixfold
