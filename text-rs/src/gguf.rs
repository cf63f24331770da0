//! Vocabularies as GGUF files embed them, turned into the tokenizer that a tokenizer.json would give.
//!
//! A GGUF names its pre-tokenizer by a word (`tokenizer.ggml.pre`) instead of carrying it; the table
//! below says what each word stands for. The expressions are those of the models' own tokenizer.json.

use crate::pieces::MAX_TOKEN_ID;
use crate::tokenizer::TextTokenizer;
use serde_json::{json, Value as Json};
use std::collections::HashMap;
use tokenizers::models::bpe::{Vocab as BpeVocab, BPE};
use tokenizers::models::unigram::Unigram;
use tokenizers::{AddedToken, DecoderWrapper, ModelWrapper};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

/// Longer pieces don't occur; the bound keeps the search for merges linear in the file's size.
const MAX_PIECE_BYTES: usize = 1024;

pub struct Vocab<'a> {
    /// "gpt2", "llama" or "t5".
    pub model: &'a str,
    pub pre: &'a str,
    pub tokens: Vec<&'a str>,
    /// One for each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: &'a [i32],
    /// One for each token; may be empty for gpt2.
    pub scores: &'a [f32],
    pub merges: Vec<&'a str>,
    pub unk: Option<u32>,
    /// Ids put before and after a text.
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    pub add_space_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub charsmap: &'a [u8],
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const HAN_KANA: &str = "[一-龥぀-ゟ゠-ヿ]+";
const HAN_HANGUL: &str = "[一-龥ࠀ-一가-퟿]+";
/// Cased letters as DeepSeek-LLM's tokenizer lists them.
const CASED: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";

struct Pre {
    names: &'static [&'static str],
    splits: &'static [&'static str],
    /// Digits stand alone before the byte-level pattern.
    digits: bool,
    /// GPT-2's own pattern, after the splits.
    gpt2_pattern: bool,
    nfc: bool,
    ignore_merges: bool,
}

const fn pre(names: &'static [&'static str], splits: &'static [&'static str]) -> Pre {
    Pre { names, splits, digits: false, gpt2_pattern: false, nfc: false, ignore_merges: false }
}

const PRES: &[Pre] = &[
    Pre {
        ignore_merges: true,
        ..pre(&["llama-bpe", "llama3", "llama-v3", "falcon3"], &[LLAMA3])
    },
    Pre { nfc: true, ..pre(&["qwen2", "deepseek-r1-qwen", "megrez"], &[QWEN2]) },
    Pre {
        digits: true,
        gpt2_pattern: true,
        ..pre(&["smollm", "starcoder", "refact", "codeshell"], &[])
    },
    Pre { digits: true, gpt2_pattern: true, nfc: true, ..pre(&["command-r"], &[]) },
    pre(&["deepseek-v3"], &[r"\p{N}{1,3}", HAN_KANA, DEEPSEEK_V3]),
    pre(
        &["deepseek-llm"],
        &[r"[\r\n]", CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", HAN_HANGUL, r"\p{N}"],
    ),
    pre(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_HANGUL, r"\p{N}"],
    ),
    Pre { ignore_merges: true, ..pre(&["gpt-4o", "llama4"], &[GPT_4O]) },
    Pre { ignore_merges: true, ..pre(&["tekken"], &[TEKKEN]) },
    Pre {
        gpt2_pattern: true,
        ..pre(&["gpt-2", "default", "", "phi-2", "mpt", "jina-en", "jina-es", "jina-de"], &[])
    },
    Pre { gpt2_pattern: true, nfc: true, ..pre(&["olmo"], &[]) },
];

fn find_pre(name: &str) -> Result<&'static Pre, String> {
    if let Some(pre) = PRES.iter().find(|p| p.names.contains(&name)) {
        return Ok(pre);
    }
    let known: Vec<&str> =
        PRES.iter().flat_map(|p| p.names).copied().filter(|n| !n.is_empty()).collect();
    Err(format!("pre-tokenizer '{name}' is not known; known are {}", known.join(", ")))
}

/// Whether a vocabulary of this pre-tokenizer opens texts with BOS when its file doesn't say.
pub fn adds_bos_by_default(model: &str, pre: &str) -> bool {
    match model {
        "gpt2" => matches!(pre, "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "tekken"),
        "llama" => true,
        _ => false,
    }
}

pub fn build(vocab: &Vocab) -> Result<TextTokenizer, String> {
    if !matches!(vocab.model, "gpt2" | "llama" | "t5") {
        let model = vocab.model;
        return Err(format!("tokenizer model '{model}' is not supported; gpt2, llama, t5 are"));
    }
    check(vocab)?;
    let mut tokenizer = match vocab.model {
        "gpt2" => byte_level_bpe(vocab)?,
        "llama" => sentence_piece_bpe(vocab)?,
        _ => unigram(vocab)?,
    };
    add_marked_tokens(&mut tokenizer, vocab);
    let tokens = vocab.tokens.iter().map(|t| Some((*t).to_owned())).collect();
    TextTokenizer::new(tokenizer, tokens, vocab.prefix.clone(), vocab.suffix.clone())
}

fn check(vocab: &Vocab) -> Result<(), String> {
    let n = vocab.tokens.len();
    if n == 0 || n > MAX_TOKEN_ID as usize {
        return Err(format!("{n} tokens; between 1 and {MAX_TOKEN_ID} are supported"));
    }
    for (what, len) in [("token types", vocab.types.len()), ("scores", vocab.scores.len())] {
        if len != 0 && len != n {
            return Err(format!("{len} {what} for {n} tokens"));
        }
    }
    check_presence(vocab)?;
    let special = vocab.prefix.iter().chain(&vocab.suffix).chain(&vocab.unk);
    for id in special {
        if *id as usize >= n {
            return Err(format!("special token id {id} is outside the vocabulary of {n}"));
        }
    }
    match vocab.tokens.iter().position(|t| t.len() > MAX_PIECE_BYTES) {
        Some(i) => Err(format!(
            "token {i} has {} bytes; {MAX_PIECE_BYTES} is the limit",
            vocab.tokens[i].len()
        )),
        None => Ok(()),
    }
}

/// Whatever decides ids has no sensible value of its own: a file that lacks it is refused.
fn check_presence(vocab: &Vocab) -> Result<(), String> {
    let missing = |key: &str, why: &str| {
        Err(format!(
            "tokenizer.ggml.{key} is missing: {why}. Convert the model again, or name its tokenizer with --tokenizer"
        ))
    };
    if vocab.types.is_empty() {
        return missing("token_type", "without it control tokens can't be told from text");
    }
    let sentence_piece = matches!(vocab.model, "llama" | "t5");
    if sentence_piece && vocab.scores.is_empty() {
        return missing("scores", "they decide which pieces a text is split into");
    }
    let joined = |id: usize| kind(vocab, id) == NORMAL && vocab.tokens[id].chars().nth(1).is_some();
    if vocab.model == "gpt2" && vocab.merges.is_empty() && (0..vocab.tokens.len()).any(joined) {
        return missing("merges", "without them a text falls apart into single bytes");
    }
    if sentence_piece && !has_byte_tokens(vocab) && unknown_token(vocab).is_none() {
        return missing("unknown_token_id", "characters that are no token would vanish from a text");
    }
    Ok(())
}

fn kind(vocab: &Vocab, id: usize) -> i32 {
    vocab.types[id]
}

fn ids(vocab: &Vocab) -> BpeVocab {
    let mut map = BpeVocab::with_capacity(vocab.tokens.len());
    for (id, token) in vocab.tokens.iter().enumerate() {
        // The first of two equal tokens keeps the name; both keep their ids for decoding.
        map.entry((*token).to_owned()).or_insert(id as u32);
    }
    map
}

fn part<T: serde::de::DeserializeOwned>(json: Json) -> Result<T, String> {
    serde_json::from_value(json).map_err(|e| e.to_string())
}

fn byte_level_bpe(vocab: &Vocab) -> Result<Tokenizer, String> {
    let pre = find_pre(vocab.pre)?;
    let mut merges = Vec::with_capacity(vocab.merges.len());
    for (i, merge) in vocab.merges.iter().enumerate() {
        let Some((left, right)) = merge.split_once(' ') else {
            return Err(format!("merge {i} is not two tokens separated by a space"));
        };
        merges.push((left.to_owned(), right.to_owned()));
    }
    let model = BPE::builder()
        .vocab_and_merges(ids(vocab), merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|e| e.to_string())?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(model));
    if pre.nfc {
        tokenizer.with_normalizer(Some(part::<NormalizerWrapper>(json!({"type": "NFC"}))?));
    }
    let mut steps: Vec<Json> = Vec::new();
    if pre.digits {
        steps.push(json!({"type": "Digits", "individual_digits": true}));
    }
    for split in pre.splits {
        steps.push(json!({"type": "Split", "pattern": {"Regex": split},
                          "behavior": "Isolated", "invert": false}));
    }
    steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": pre.gpt2_pattern}));
    let steps = json!({"type": "Sequence", "pretokenizers": steps});
    tokenizer.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(steps)?));
    let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                         "use_regex": true});
    tokenizer.with_decoder(Some(part::<DecoderWrapper>(decoder)?));
    Ok(tokenizer)
}

/// Every way to cut a normal piece into two others, ranked by the score of the whole: what
/// SentencePiece's "join the best-scored neighbours first" does.
fn ranked_merges(vocab: &Vocab) -> Vec<(String, String)> {
    let skip = |id: usize| matches!(kind(vocab, id), UNKNOWN | CONTROL | USER_DEFINED | UNUSED | BYTE);
    let normal: HashMap<&str, usize> = (0..vocab.tokens.len())
        .rev()
        .filter(|id| !skip(*id))
        .map(|id| (vocab.tokens[id], id))
        .collect();
    let mut ranked = Vec::new();
    for (token, id) in &normal {
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if normal.contains_key(left) && normal.contains_key(right) {
                ranked.push((*id, left, right));
            }
        }
    }
    let score = |id: usize| vocab.scores[id];
    ranked.sort_by(|a, b| {
        score(b.0).total_cmp(&score(a.0)).then_with(|| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)))
    });
    ranked.into_iter().map(|(_, l, r)| (l.to_owned(), r.to_owned())).collect()
}

fn has_byte_tokens(vocab: &Vocab) -> bool {
    (0..vocab.tokens.len()).any(|id| kind(vocab, id) == BYTE)
        || vocab.tokens.iter().any(|t| *t == "<0x0A>")
}

fn unknown_token(vocab: &Vocab) -> Option<u32> {
    let marked = || (0..vocab.tokens.len()).find(|id| kind(vocab, *id) == UNKNOWN);
    vocab.unk.or_else(|| marked().map(|id| id as u32))
}

fn sentence_piece_bpe(vocab: &Vocab) -> Result<Tokenizer, String> {
    let mut builder = BPE::builder()
        .vocab_and_merges(ids(vocab), ranked_merges(vocab))
        .fuse_unk(true)
        .byte_fallback(has_byte_tokens(vocab));
    if let Some(unk) = unknown_token(vocab) {
        builder = builder.unk_token(vocab.tokens[unk as usize].to_owned());
    }
    let model = builder.build().map_err(|e| e.to_string())?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(model));
    with_sentence_piece_shell(&mut tokenizer, vocab, Vec::new())?;
    Ok(tokenizer)
}

fn unigram(vocab: &Vocab) -> Result<Tokenizer, String> {
    let scores = vocab.scores.iter().map(|s| f64::from(*s));
    let scored: Vec<(String, f64)> =
        vocab.tokens.iter().map(|t| (*t).to_owned()).zip(scores).collect();
    let unk = unknown_token(vocab).ok_or("a unigram vocabulary needs an unknown token")?;
    let model = Unigram::from(scored, Some(unk as usize), has_byte_tokens(vocab))
        .map_err(|e| e.to_string())?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::Unigram(model));
    let mut before = Vec::new();
    if !vocab.charsmap.is_empty() {
        if let Some(size) = vocab.charsmap.first_chunk::<4>() {
            crate::tokenizer::check_charsmap(*size, vocab.charsmap.len())?;
        }
        before.push(json!({"type": "Precompiled", "precompiled_charsmap": base64(vocab.charsmap)}));
    }
    if vocab.remove_extra_whitespaces {
        let replace = |regex: &str, content: &str| {
            json!({"type": "Replace", "pattern": {"Regex": regex}, "content": content})
        };
        before.push(replace(r"\A +| +\z", ""));
        before.push(replace(" {2,}", " "));
    }
    with_sentence_piece_shell(&mut tokenizer, vocab, before)?;
    Ok(tokenizer)
}

fn with_sentence_piece_shell(
    tokenizer: &mut Tokenizer,
    vocab: &Vocab,
    mut normalizers: Vec<Json>,
) -> Result<(), String> {
    if vocab.add_space_prefix {
        normalizers.push(json!({"type": "Prepend", "prepend": "▁"}));
    }
    normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}));
    let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
    tokenizer.with_normalizer(Some(part::<NormalizerWrapper>(normalizer)?));
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if vocab.add_space_prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    tokenizer.with_decoder(Some(part::<DecoderWrapper>(decoder)?));
    Ok(())
}

fn add_marked_tokens(tokenizer: &mut Tokenizer, vocab: &Vocab) {
    let mut marked = Vec::new();
    for (id, token) in vocab.tokens.iter().enumerate() {
        let special = match kind(vocab, id) {
            UNKNOWN | CONTROL => true,
            USER_DEFINED => false,
            _ => continue,
        };
        marked.push(AddedToken::from(*token, special).normalized(false));
    }
    tokenizer.add_tokens(&marked);
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |w, b| w << 8 | *b as u32) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * i) & 63) as usize] as char;
            out.push(if i <= chunk.len() { digit } else { '=' });
        }
    }
    out
}
