// C ABI of the Rust crate behind the text module (text-rs). Written by hand; src/ffi.rs mirrors it line by line.
//
// Conventions. Strings and byte arrays are borrowed for the length of a call (sixfold_slice) or owned by the crate and
// handed out (sixfold_buffer; give it back with sixfold_buffer_free, also when it is empty). Text is UTF-8; bytes that are not
// are an error, never undefined behaviour. Every function that returns int returns a sixfold_text_code; on anything but
// SIXFOLD_TEXT_OK it fills *error with a message and leaves the other outputs empty. No function unwinds or aborts on
// its input. Handles may be used by several threads at once, except while they are freed.
#ifndef SIXFOLD_TEXT_H_
#define SIXFOLD_TEXT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sixfold_text_code {
  SIXFOLD_TEXT_OK = 0,
  SIXFOLD_TEXT_INVALID = 1,   // the input is not what it should be
  SIXFOLD_TEXT_RAISED = 2,    // a template called raise_exception: the message is the template's own
  SIXFOLD_TEXT_LIMIT = 3,     // a template used up its steps, output bytes or time
  SIXFOLD_TEXT_INTERNAL = 4,  // a bug: the Rust side panicked
};

typedef struct sixfold_tokenizer sixfold_tokenizer;

typedef struct {
  const uint8_t* data;
  size_t size;
} sixfold_slice;

typedef struct {
  uint8_t* data;
  size_t size;
  size_t capacity;
} sixfold_buffer;

// `count` strings laid end to end: string i is data[offsets[i] .. offsets[i + 1]).
typedef struct {
  sixfold_slice data;
  const uint64_t* offsets;  // count + 1 values, or null when count is 0
  size_t count;
} sixfold_strings;

void sixfold_buffer_free(sixfold_buffer* buffer);

// ---- Tokenizers ----

// `declared`: the tokens of the files beside tokenizer.json as JSON, or an empty slice:
//   {"by_id": [[id, token], …], "with_own": bool, "roles": [token, …], "extras": [token, …]}
// with tokens as transformers writes an AddedToken. with_own: tokenizer.json's added tokens join
// by_id and win there.
int sixfold_tokenizer_from_json(sixfold_slice json, sixfold_slice declared, sixfold_tokenizer** out,
                                sixfold_buffer* error);

// A vocabulary as GGUF metadata holds it. Ids of -1 are absent.
typedef struct {
  sixfold_slice model;  // "gpt2", "llama" or "t5"
  sixfold_slice pre;    // pre-tokenizer's name (gpt2 only)
  sixfold_strings tokens;
  sixfold_strings merges;
  const int32_t* types;  // one a token
  size_t types_count;
  const float* scores;  // one a token; gpt2: or null
  size_t scores_count;
  sixfold_slice charsmap;  // precompiled normalizer of t5, may be empty
  int64_t bos_id;
  int64_t eos_id;
  int64_t unk_id;
  int32_t add_bos;  // 1, 0, or -1 for the model's default; 1 needs bos_id
  int32_t add_eos;
  int32_t add_space_prefix;
  int32_t remove_extra_whitespaces;
} sixfold_gguf_vocab;

int sixfold_tokenizer_from_gguf(const sixfold_gguf_vocab* vocab, sixfold_tokenizer** out, sixfold_buffer* error);

// What sixfold_tokenizer_encode with ADD_SPECIAL puts before a text from now on: `bos_id` too, or
// nothing for -1. Not while others use the tokenizer.
void sixfold_tokenizer_set_bos(sixfold_tokenizer* tokenizer, int64_t bos_id);

void sixfold_tokenizer_free(sixfold_tokenizer* tokenizer);

enum sixfold_encode_flags {
  SIXFOLD_ENCODE_ADD_SPECIAL = 1,    // what the post-processor puts around a text
  SIXFOLD_ENCODE_PARSE_SPECIAL = 2,  // special tokens written in the text become their ids
};

// *ids receives little-endian u32 values.
int sixfold_tokenizer_encode(const sixfold_tokenizer* tokenizer, sixfold_slice text, uint32_t flags, sixfold_buffer* ids,
                             sixfold_buffer* error);

// Id of a token by its text, or -1.
int64_t sixfold_tokenizer_token_id(const sixfold_tokenizer* tokenizer, sixfold_slice token);

// The token as the vocabulary spells it, borrowed until the tokenizer is freed; {null, 0} for an id that is no token.
sixfold_slice sixfold_tokenizer_token_text(const sixfold_tokenizer* tokenizer, uint32_t id);

enum sixfold_token_flags {
  SIXFOLD_TOKEN_PRESENT = 1,
  SIXFOLD_TOKEN_SPECIAL = 2,
  SIXFOLD_TOKEN_ADDED = 4,
};

// How ids become text: the bytes of every token, joined; up to strip_count copies of strip_byte dropped at the start; then made
// valid UTF-8. All pointers are borrowed until the tokenizer is freed.
typedef struct {
  size_t vocab_size;        // largest id + 1
  const uint8_t* flags;     // vocab_size sixfold_token_flags
  sixfold_strings pieces;   // bytes a token adds to a text
  sixfold_strings first;    // the same for the first token of a text; count 0 when that makes no difference
  int32_t repair_per_byte;  // 1: a U+FFFD for each byte that is not UTF-8; 0: one for each maximal part of a character
  uint32_t strip_count;
  uint8_t strip_byte;
} sixfold_token_table;

void sixfold_tokenizer_table(const sixfold_tokenizer* tokenizer, sixfold_token_table* out);

// Decoding by the tokenizers library itself, the oracle for the table above. Tests only.
int sixfold_tokenizer_reference_decode(const sixfold_tokenizer* tokenizer, const uint32_t* ids, size_t count,
                                       int skip_special, sixfold_buffer* text, sixfold_buffer* error);

// ---- Chat templates ----

typedef struct {
  uint64_t steps_max;         // instructions
  uint64_t output_bytes_max;  // bytes written and bytes made by string operations, together
  uint64_t time_ms_max;
} sixfold_template_limits;

// SIXFOLD_TEXT_OK if the source is a template that can be run.
int sixfold_template_check(sixfold_slice source, sixfold_buffer* error);

enum sixfold_variable_kind {
  SIXFOLD_VARIABLE_JSON = 0,    // value is JSON text
  SIXFOLD_VARIABLE_TEXT = 1,    // value is the text itself
  SIXFOLD_VARIABLE_OBJECT = 2,  // value is a JSON object, each member a variable; name is only for messages
};

typedef struct {
  sixfold_slice name;
  sixfold_slice value;
  int32_t kind;
} sixfold_variable;

// Renders `source` with the variables given; a later one replaces an earlier one of its name. strftime_now formats
// `now_s` (seconds since 1970) in the process's time zone.
int sixfold_template_render(sixfold_slice source, const sixfold_variable* variables, size_t variable_count, int64_t now_s,
                            const sixfold_template_limits* limits, sixfold_buffer* text, sixfold_buffer* error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SIXFOLD_TEXT_H_
