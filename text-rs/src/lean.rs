//! The way from text to ids without the library's bookkeeping. `tokenizers` keeps, for each byte of a
//! text, where it came from: some 80 bytes of memory a byte, so that a text of 10 MB takes a gigabyte.
//! For the kinds of tokenizer that causal models have, this module cuts the text itself and asks the
//! library only for the ids of one word. Whatever it doesn't know goes the library's way.

use aho_corasick::{AhoCorasick, MatchKind};
use onig::{MatchParam, Regex, Region, SearchOptions};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::HashSet;
use tokenizers::models::ModelWrapper;
use tokenizers::{Model, Tokenizer};
use unicode_normalization_alignments::UnicodeNormalization;

/// Words up to this many bytes go to the model whole.
const WORD_BYTES: usize = 256;
/// The model needs some 80 bytes a character of a word; longer words are refused, not paid for.
const WORD_CHARS_MAX: usize = 4 << 20;
const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

pub struct Lean {
    /// Added tokens found before normalization, and those found after it.
    raw: Added,
    normalized: Added,
    normalizers: Vec<Normalizer>,
    steps: Vec<Step>,
    /// Pairs of characters that stand together in some token: words may be cut between all others.
    joints: Option<HashSet<(char, char)>>,
}

struct Added {
    finder: Option<AhoCorasick>,
    tokens: Vec<(u32, bool)>,
}

enum Normalizer {
    Nfc,
    Prepend(String),
    Replace(String, String),
}

enum Step {
    Isolated(Regex),
    MergedWithPrevious(String),
    Digits,
    Bytes,
}

/// A part of a text: an added token, or text between them.
enum Part<'t> {
    Token(u32),
    Text(&'t str),
}

impl Lean {
    /// `None` where a part of the tokenizer is of a kind not handled here.
    pub fn of(tokenizer: &Tokenizer, tokens: &[Option<String>]) -> Option<Lean> {
        let json = |value: serde_json::Result<Json>| value.ok();
        let normalizers = normalizers(&json(serde_json::to_value(tokenizer.get_normalizer()))?)?;
        let steps = steps(&json(serde_json::to_value(tokenizer.get_pre_tokenizer()))?)?;
        let mut raw = Vec::new();
        let mut normalized = Vec::new();
        for (id, token) in tokenizer.get_added_vocabulary().get_added_tokens_decoder() {
            if token.lstrip || token.rstrip || token.single_word {
                return None;
            }
            if tokenizer.token_to_id(&token.content) != Some(*id) {
                continue;
            }
            let list = if token.normalized { &mut normalized } else { &mut raw };
            let special = tokenizer.get_added_vocabulary().is_special_token(&token.content);
            list.push((token.content.clone(), *id, special));
        }
        if !normalized.is_empty() && !normalizers.is_empty() {
            return None;
        }
        let joints = joints(tokenizer, tokens);
        Some(Lean {
            raw: Added::of(raw)?,
            normalized: Added::of(normalized)?,
            normalizers,
            steps,
            joints,
        })
    }

    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        parse_special: bool,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        self.raw.split(text, parse_special, &mut |part| match part {
            Part::Token(id) => {
                ids.push(id);
                Ok(())
            }
            Part::Text(text) => {
                let text = self.normalize(text);
                self.normalized.split(&text, parse_special, &mut |part| match part {
                    Part::Token(id) => {
                        ids.push(id);
                        Ok(())
                    }
                    Part::Text(text) => self.cut(&self.steps, text, tokenizer.get_model(), ids),
                })
            }
        })
    }

    fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut out = Cow::Borrowed(text);
        for step in &self.normalizers {
            out = match step {
                Normalizer::Nfc if out.is_ascii() => out,
                Normalizer::Nfc => Cow::Owned(out.nfc().map(|(c, _)| c).collect()),
                Normalizer::Prepend(_) if out.is_empty() => out,
                Normalizer::Prepend(prefix) => Cow::Owned(format!("{prefix}{out}")),
                Normalizer::Replace(from, to) => Cow::Owned(out.replace(from.as_str(), to)),
            };
        }
        out
    }

    fn cut(
        &self,
        steps: &[Step],
        text: &str,
        model: &ModelWrapper,
        ids: &mut Vec<u32>,
    ) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let Some((step, rest)) = steps.split_first() else { return self.word(text, model, ids) };
        let mut next = |from: usize, to: usize| self.cut(rest, &text[from..to], model, ids);
        match step {
            Step::Isolated(regex) => {
                let mut done = 0;
                for_each_match(regex, text, &mut |from, to| {
                    next(done, from)?;
                    done = to;
                    next(from, to)
                })?;
                next(done, text.len())
            }
            Step::MergedWithPrevious(pattern) => {
                let mut done = 0;
                for part in text.split_inclusive(pattern.as_str()) {
                    next(done, done + part.len())?;
                    done += part.len();
                }
                Ok(())
            }
            Step::Digits => {
                let mut done = 0;
                for (at, digit) in text.char_indices().filter(|(_, c)| c.is_numeric()) {
                    next(done, at)?;
                    done = at + digit.len_utf8();
                    next(at, done)?;
                }
                next(done, text.len())
            }
            Step::Bytes => {
                let mapped: String = text.bytes().map(byte_char).collect();
                self.word(&mapped, model, ids)
            }
        }
    }

    fn word(&self, word: &str, model: &ModelWrapper, ids: &mut Vec<u32>) -> Result<(), String> {
        let mut ask = |part: &str| -> Result<(), String> {
            if part.len() > WORD_CHARS_MAX && part.chars().count() > WORD_CHARS_MAX {
                return Err(format!(
                    "the text has a run of over {WORD_CHARS_MAX} characters that can't be split"
                ));
            }
            let tokens = model.tokenize(part).map_err(|e| e.to_string())?;
            ids.extend(tokens.iter().map(|t| t.id));
            Ok(())
        };
        let joints = match &self.joints {
            Some(joints) if word.len() > WORD_BYTES => joints,
            _ => return ask(word),
        };
        let mut start = 0;
        let mut before: Option<char> = None;
        for (at, c) in word.char_indices() {
            if before.is_some_and(|b| !joints.contains(&(b, c))) {
                ask(&word[start..at])?;
                start = at;
            }
            before = Some(c);
        }
        ask(&word[start..])
    }
}

impl Added {
    fn of(tokens: Vec<(String, u32, bool)>) -> Option<Added> {
        let finder = if tokens.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|t| &t.0));
            Some(built.ok()?)
        };
        Some(Added { finder, tokens: tokens.into_iter().map(|t| (t.1, t.2)).collect() })
    }

    fn split<'t>(
        &self,
        text: &'t str,
        parse_special: bool,
        each: &mut dyn FnMut(Part<'t>) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut done = 0;
        if let Some(finder) = &self.finder {
            for found in finder.find_iter(text) {
                let (id, special) = self.tokens[found.pattern().as_usize()];
                if special && !parse_special {
                    continue;
                }
                if done < found.start() {
                    each(Part::Text(&text[done..found.start()]))?;
                }
                each(Part::Token(id))?;
                done = found.end();
            }
        }
        if done < text.len() {
            each(Part::Text(&text[done..]))?;
        }
        Ok(())
    }
}

fn normalizers(json: &Json) -> Option<Vec<Normalizer>> {
    if json.is_null() {
        return Some(Vec::new());
    }
    let text = |key: &str| json.get(key).and_then(Json::as_str).map(str::to_owned);
    match json.get("type")?.as_str()? {
        "Sequence" => {
            let mut all = Vec::new();
            for each in json.get("normalizers")?.as_array()? {
                all.extend(normalizers(each)?);
            }
            Some(all)
        }
        "NFC" => Some(vec![Normalizer::Nfc]),
        "Prepend" => Some(vec![Normalizer::Prepend(text("prepend")?)]),
        "Replace" => {
            let from = json.get("pattern")?.get("String")?.as_str()?.to_owned();
            let to = text("content")?;
            (!from.is_empty()).then(|| vec![Normalizer::Replace(from, to)])
        }
        _ => None,
    }
}

fn steps(json: &Json) -> Option<Vec<Step>> {
    if json.is_null() {
        return Some(Vec::new());
    }
    let flag = |key: &str| json.get(key).and_then(Json::as_bool);
    match json.get("type")?.as_str()? {
        "Sequence" => {
            let mut all = Vec::new();
            for each in json.get("pretokenizers")?.as_array()? {
                all.extend(steps(each)?);
            }
            // After the bytes are mapped nothing else is expected.
            let bytes = all.iter().position(|s| matches!(s, Step::Bytes));
            bytes.is_none_or(|at| at + 1 == all.len()).then_some(all)
        }
        "Split" if flag("invert") == Some(false) => {
            let pattern = json.get("pattern")?;
            let regex = pattern.get("Regex").and_then(Json::as_str);
            let plain = pattern.get("String").and_then(Json::as_str).filter(|p| !p.is_empty());
            match (json.get("behavior")?.as_str()?, regex, plain) {
                ("Isolated", Some(regex), None) => {
                    Some(vec![Step::Isolated(Regex::new(regex).ok()?)])
                }
                ("MergedWithPrevious", None, Some(plain)) => {
                    Some(vec![Step::MergedWithPrevious(plain.to_owned())])
                }
                _ => None,
            }
        }
        "Digits" if flag("individual_digits") == Some(true) => Some(vec![Step::Digits]),
        "ByteLevel" if flag("add_prefix_space") == Some(false) => {
            let mut all = Vec::new();
            if flag("use_regex").unwrap_or(true) {
                all.push(Step::Isolated(Regex::new(GPT2).ok()?));
            }
            all.push(Step::Bytes);
            Some(all)
        }
        _ => None,
    }
}

/// The pairs of neighbours inside tokens: BPE never joins other neighbours, so a word cut between them
/// gives the same ids. `None` where something beside merges looks across neighbours.
fn joints(tokenizer: &Tokenizer, tokens: &[Option<String>]) -> Option<HashSet<(char, char)>> {
    let ModelWrapper::BPE(bpe) = tokenizer.get_model() else { return None };
    let given = |affix: &Option<String>| affix.as_deref().is_some_and(|s| !s.is_empty());
    if given(&bpe.continuing_subword_prefix) || given(&bpe.end_of_word_suffix) {
        return None;
    }
    let all_bytes = || (0..=255).all(|b: u8| bpe.token_to_id(&format!("<{b:#04X}>")).is_some());
    if bpe.unk_token.is_some() && bpe.fuse_unk && !(bpe.byte_fallback && all_bytes()) {
        return None;
    }
    let mut pairs = HashSet::new();
    for token in tokens.iter().flatten() {
        if bpe.byte_fallback && token.len() > 6 && token.contains("<0x") {
            return None; // perhaps a merge of byte tokens
        }
        pairs.extend(token.chars().zip(token.chars().skip(1)));
    }
    Some(pairs)
}

/// The matches that onig's own iterator gives, with a bound on backtracking that grows with the text.
fn for_each_match(
    regex: &Regex,
    text: &str,
    each: &mut dyn FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), String> {
    let retries = (10_000_000 + 64 * text.len() as u64).min(u32::MAX as u64) as u32;
    let mut region = Region::new();
    let mut from = 0;
    let mut last_end: Option<usize> = None;
    while from <= text.len() {
        region.clear();
        let mut bounds = MatchParam::default();
        bounds.set_retry_limit_in_match(retries);
        let options = SearchOptions::SEARCH_OPTION_NONE;
        let found = regex
            .search_with_param(text, from, text.len(), options, Some(&mut region), bounds)
            .map_err(|e| format!("the pre-tokenizer's pattern gave up on this text: {e}"))?;
        let Some((start, end)) = found.and_then(|_| region.pos(0)) else { break };
        // An empty match right after the last one is not a match of its own.
        if start == end && last_end == Some(end) {
            from += text[from..].chars().next().map_or(1, char::len_utf8);
            continue;
        }
        from = end;
        last_end = Some(end);
        each(start, end)?;
    }
    Ok(())
}

/// GPT-2's printable character for a byte; src/pieces.rs has the way back.
fn byte_char(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as u32,
        0..=0x20 => 256 + byte as u32,
        0x7f..=0xa0 => 256 + 33 + (byte as u32 - 0x7f),
        0xad => 256 + 67,
    };
    char::from_u32(code).unwrap_or('\u{fffd}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_characters_are_the_inverse_of_the_decoders() {
        let back = crate::pieces::byte_level_map();
        for byte in 0..=255u8 {
            assert_eq!(back(byte_char(byte)), Some(byte));
        }
    }
}
