//! One loaded tokenizer: text to ids, and the table that turns ids back into bytes.

use crate::declared;
use crate::lean::Lean;
use crate::pieces::{self, Pieces, MAX_TOKEN_ID};
use serde_json::Value as Json;
use std::sync::OnceLock;
use tokenizers::models::ModelWrapper;
use tokenizers::{
    Encoding, Model, OffsetReferential, OffsetType, PreTokenizer, Token, Tokenizer,
};

/// A text that a normalizer would blow up beyond this factor is refused at load.
const MAX_GROWTH: f64 = 64.0;
/// The library needs some 100 bytes of memory for each byte of a text.
const LIBRARY_TEXT_BYTES_MAX: usize = 4 << 20;

pub struct TextTokenizer {
    plain: Tokenizer,
    /// The same with special tokens read as text; made when first asked for.
    literal: OnceLock<Tokenizer>,
    lean: Option<Lean>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    tokens: Vec<Option<String>>,
    pub pieces: Pieces,
}

impl TextTokenizer {
    /// Reads a tokenizer.json. Its truncation and padding sections are ignored. `declared`: tokens of the files beside
    /// it, as src/declared.rs takes them; may be empty.
    pub fn from_json(json: &[u8], declared: &[u8]) -> Result<Self, String> {
        let own = check_growth(json)?;
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        if let ModelWrapper::BPE(bpe) = tokenizer.get_model() {
            if bpe.dropout.is_some_and(|p| p != 0.0) {
                let mut bpe = bpe.clone();
                bpe.dropout = None; // a training device: the same text must give the same ids
                tokenizer.with_model(bpe);
            }
        }
        declared::add(&mut tokenizer, declared, &own)?;
        let tokens = tokens_of(&tokenizer)?;
        let (prefix, suffix) = frame_of(&tokenizer)?;
        Self::new(tokenizer, tokens, prefix, suffix)
    }

    /// Puts `bos` before every text, or, for `None`, nothing.
    pub fn set_bos(&mut self, bos: Option<u32>) {
        match bos {
            Some(bos) if self.prefix.first() != Some(&bos) => self.prefix.insert(0, bos),
            Some(_) => {}
            None => self.prefix.clear(),
        }
    }

    pub fn new(
        tokenizer: Tokenizer,
        tokens: Vec<Option<String>>,
        prefix: Vec<u32>,
        suffix: Vec<u32>,
    ) -> Result<Self, String> {
        let pieces = pieces::build(&tokenizer, &tokens)?;
        let lean = Lean::of(&tokenizer, &tokens);
        Ok(TextTokenizer {
            plain: tokenizer,
            literal: OnceLock::new(),
            lean,
            prefix,
            suffix,
            tokens,
            pieces,
        })
    }

    pub fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize)?.as_deref()
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.plain.token_to_id(token)
    }

    /// Ids of `text`.
    pub fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        if add_special {
            ids.extend_from_slice(&self.prefix);
        }
        match &self.lean {
            Some(lean) => lean.encode(&self.plain, text, parse_special, ids)?,
            None => self.encode_by_library(text, parse_special, ids)?,
        }
        if add_special {
            ids.extend_from_slice(&self.suffix);
        }
        Ok(())
    }

    /// Goes below `Tokenizer::encode`, whose strings and offsets are of no use here.
    fn encode_by_library(
        &self,
        text: &str,
        parse_special: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        if text.len() > LIBRARY_TEXT_BYTES_MAX {
            return Err(format!(
                "the text has {} bytes; this kind of tokenizer takes {LIBRARY_TEXT_BYTES_MAX}",
                text.len()
            ));
        }
        let tokenizer = if parse_special { &self.plain } else { self.literal() };
        let mut split = tokenizer
            .get_added_vocabulary()
            .extract_and_normalize(tokenizer.get_normalizer(), text);
        if let Some(pre) = tokenizer.get_pre_tokenizer() {
            pre.pre_tokenize(&mut split).map_err(|e| e.to_string())?;
        }
        let model = tokenizer.get_model();
        for (part, _, done) in split.get_splits(OffsetReferential::Original, OffsetType::None) {
            match done {
                Some(tokens) => ids.extend(tokens.iter().map(|t| t.id)),
                None => {
                    let tokens = model.tokenize(part).map_err(|e| e.to_string())?;
                    ids.extend(tokens.iter().map(|t| t.id));
                }
            }
        }
        Ok(())
    }

    /// What `tokenizers` itself decodes; the oracle of the piece table's tests.
    pub fn reference_decode(&self, ids: &[u32], skip_special: bool) -> Result<String, String> {
        self.plain.decode(ids, skip_special).map_err(|e| e.to_string())
    }

    fn literal(&self) -> &Tokenizer {
        self.literal.get_or_init(|| {
            let mut copy = self.plain.clone();
            copy.set_encode_special_tokens(true);
            copy
        })
    }
}

/// Token strings by id, with `None` in the gaps.
fn tokens_of(tokenizer: &Tokenizer) -> Result<Vec<Option<String>>, String> {
    let vocab = tokenizer.get_vocab(true);
    let Some(max) = vocab.values().copied().max() else {
        return Err("the vocabulary is empty".into());
    };
    if max > MAX_TOKEN_ID {
        return Err(format!("token id {max} is above the largest supported, {MAX_TOKEN_ID}"));
    }
    Ok((0..=max).map(|id| tokenizer.id_to_token(id)).collect())
}

/// What the post-processor puts before and after a text, found by showing it one token.
fn frame_of(tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>), String> {
    const MARK: u32 = u32::MAX;
    let marked = Encoding::from_tokens(vec![Token::new(MARK, "x".into(), (0, 1))], 0);
    let framed = tokenizer.post_process(marked, None, true).map_err(|e| e.to_string())?;
    let ids = framed.get_ids();
    let mut at = ids.iter().enumerate().filter(|(_, id)| **id == MARK).map(|(i, _)| i);
    match (at.next(), at.next()) {
        (Some(i), None) => Ok((ids[..i].to_vec(), ids[i + 1..].to_vec())),
        _ => Err("post_processor does not hold the text exactly once".into()),
    }
}

/// A precompiled character map begins with the size of its table; the library reserves that much before it looks further.
pub fn check_charsmap(size: [u8; 4], bytes: usize) -> Result<(), String> {
    let claimed = u32::from_le_bytes(size) as usize;
    if claimed > bytes.saturating_sub(4) {
        return Err(format!("precompiled_charsmap claims a table of {claimed} bytes and holds {bytes} in all"));
    }
    Ok(())
}

/// The same for the base64 form of tokenizer.json. What is no base64, or too short, the reader proper refuses.
fn check_charsmap_text(text: &str) -> Result<(), String> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits: u64 = 0;
    for i in 0..6 {
        let digit = text.as_bytes().get(i).and_then(|c| ALPHABET.iter().position(|a| a == c));
        let Some(digit) = digit else { return Ok(()) };
        bits = bits << 6 | digit as u64;
    }
    check_charsmap(((bits >> 4) as u32).to_be_bytes(), text.len() / 4 * 3)
}

/// Refuses chains of replacements that multiply a text's length (each may be harmless alone), and character maps that
/// claim more than they hold. Gives back the file's added tokens.
fn check_growth(json: &[u8]) -> Result<Vec<Json>, String> {
    fn walk(node: &Json, growth: &mut f64) -> Result<(), String> {
        for key in ["normalizers", "pretokenizers"] {
            let list = node.get(key).and_then(Json::as_array);
            list.into_iter().flatten().try_for_each(|n| walk(n, growth))?;
        }
        // Wherever a character map stands, whatever the node calls itself: the library tries every kind in turn.
        if let Some(text) = node.get("precompiled_charsmap").and_then(Json::as_str) {
            check_charsmap_text(text)?;
        }
        let length = |n: Option<&Json>| n.and_then(Json::as_str).map_or(0, str::len).max(1) as f64;
        match node.get("type").and_then(Json::as_str) {
            Some("Replace") => {
                let pattern = length(node.get("pattern").and_then(|p| p.get("String")));
                *growth *= (length(node.get("content")) / pattern).max(1.0);
            }
            Some("Prepend") => *growth += length(node.get("prepend")) / 64.0,
            _ => {}
        }
        Ok(())
    }
    // The library acts on a normalizer before it has seen the rest: a damaged file must not get that far.
    let parts = serde_json::from_slice::<Parts>(json).map_err(|e| e.to_string())?;
    let mut growth = 1.0;
    walk(&parts.normalizer, &mut growth)?;
    walk(&parts.pre_tokenizer, &mut growth)?;
    if growth > MAX_GROWTH {
        return Err(format!("normalizer may grow a text {:.0} times; {MAX_GROWTH} is the limit", growth));
    }
    Ok(match parts.added_tokens {
        Json::Array(tokens) => tokens,
        _ => Vec::new(),
    })
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Json,
    pre_tokenizer: Json,
    added_tokens: Json,
}
