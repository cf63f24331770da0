//! What each token adds to a decoded text, as a table of bytes.
//!
//! `tokenizers` decodes whole lists of ids; a stream needs the share of one token. Every decoder of
//! a causal language model can be written as "bytes of the token, joined, then repaired to UTF-8":
//! this module turns the decoder section of a tokenizer.json into that form, or says that it can't.

use serde_json::Value as Json;
use tokenizers::Tokenizer;

/// Ids at or above this are refused: no model has so many, and the table has one slot for each.
pub const MAX_TOKEN_ID: u32 = (1 << 24) - 1;

pub const FLAG_PRESENT: u8 = 1;
pub const FLAG_SPECIAL: u8 = 2;
pub const FLAG_ADDED: u8 = 4;

/// How bytes that are not UTF-8 are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// One U+FFFD for each maximal part of a character (byte-level decoders).
    PerPart = 0,
    /// One U+FFFD for each byte (`ByteFallback`).
    PerByte = 1,
}

#[derive(Debug)]
pub struct Table {
    pub bytes: Vec<u8>,
    /// `vocab_size + 1` offsets into `bytes`.
    pub offsets: Vec<u64>,
}

impl Table {
    fn new() -> Self {
        Table { bytes: Vec::new(), offsets: vec![0] }
    }

    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.offsets.push(self.bytes.len() as u64);
    }
}

#[derive(Debug)]
pub struct Pieces {
    pub table: Table,
    /// The same for a token that opens the text, where that differs.
    pub first: Option<Table>,
    pub flags: Vec<u8>,
    pub repair: Repair,
    /// Up to `strip_count` copies of `strip_byte` are dropped at the start of the whole text.
    pub strip_byte: u8,
    pub strip_count: u32,
}

enum Step {
    Replace { from: String, to: String },
    ByteFallback,
    ByteLevel,
    StripEach { content: char, start: usize, stop: usize },
    Metaspace { replacement: char, drops_first: bool },
    WordPiece { prefix: String, cleanup: bool },
    JoinBySpace,
}

struct Plan {
    steps: Vec<Step>,
    strip_byte: u8,
    strip_count: u32,
}

pub fn build(tokenizer: &Tokenizer, tokens: &[Option<String>]) -> Result<Pieces, String> {
    let decoder = match tokenizer.get_decoder() {
        Some(d) => serde_json::to_value(d).map_err(|e| e.to_string())?,
        None => Json::Null,
    };
    let plan = plan_of(&decoder)?;
    let differs = plan.steps.iter().any(|s| {
        matches!(
            s,
            Step::Metaspace { drops_first: true, .. } | Step::WordPiece { .. } | Step::JoinBySpace
        )
    });
    let to_byte = byte_level_map();
    let added = tokenizer.get_added_vocabulary();
    let mut table = Table::new();
    let mut first = differs.then(Table::new);
    let mut flags = Vec::with_capacity(tokens.len());
    for token in tokens {
        let Some(token) = token else {
            table.push(b"");
            if let Some(f) = first.as_mut() {
                f.push(b"")
            }
            flags.push(0);
            continue;
        };
        table.push(&piece(&plan.steps, token, false, &to_byte));
        if let Some(f) = first.as_mut() {
            f.push(&piece(&plan.steps, token, true, &to_byte));
        }
        let mut flag = FLAG_PRESENT;
        if added.is_special_token(token) {
            flag |= FLAG_SPECIAL;
        }
        if added.get_vocab().contains_key(token) {
            flag |= FLAG_ADDED;
        }
        flags.push(flag);
    }
    let fallback = plan.steps.iter().any(|s| matches!(s, Step::ByteFallback));
    Ok(Pieces {
        table,
        first,
        flags,
        repair: if fallback { Repair::PerByte } else { Repair::PerPart },
        strip_byte: plan.strip_byte,
        strip_count: plan.strip_count,
    })
}

fn text<'a>(node: &'a Json, key: &str) -> Result<&'a str, String> {
    node.get(key).and_then(Json::as_str).ok_or_else(|| format!("decoder: `{key}` must be a string"))
}

fn one_char(node: &Json, key: &str) -> Result<char, String> {
    let s = text(node, key)?;
    let mut chars = s.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(format!("decoder: `{key}` must be one character")),
    }
}

fn plan_of(decoder: &Json) -> Result<Plan, String> {
    let mut plan = Plan { steps: Vec::new(), strip_byte: 0, strip_count: 0 };
    if decoder.is_null() {
        plan.steps.push(Step::JoinBySpace);
        return Ok(plan);
    }
    let mut nodes = Vec::new();
    flatten(decoder, &mut nodes);
    let mut fused = false;
    let mut byte_level = false;
    for node in nodes {
        let kind = text(node, "type")?;
        if byte_level || (fused && kind != "Strip" && kind != "Fuse") {
            return Err(format!("decoder {kind} is not supported at this place of the sequence"));
        }
        match kind {
            "Replace" => {
                let from = node
                    .get("pattern")
                    .and_then(|p| p.get("String"))
                    .and_then(Json::as_str)
                    .ok_or("decoder Replace is only supported with a plain string pattern")?;
                plan.steps.push(Step::Replace {
                    from: from.to_owned(),
                    to: text(node, "content")?.to_owned(),
                });
            }
            "ByteFallback" => plan.steps.push(Step::ByteFallback),
            "Fuse" => fused = true,
            "ByteLevel" => {
                plan.steps.push(Step::ByteLevel);
                byte_level = true;
            }
            "Strip" => add_strip(&mut plan, node, fused)?,
            "Metaspace" => plan.steps.push(Step::Metaspace {
                replacement: one_char(node, "replacement")?,
                drops_first: node.get("prepend_scheme").and_then(Json::as_str) != Some("never"),
            }),
            "WordPiece" => plan.steps.push(Step::WordPiece {
                prefix: text(node, "prefix")?.to_owned(),
                cleanup: node.get("cleanup").and_then(Json::as_bool).unwrap_or(true),
            }),
            other => return Err(format!("decoder {other} is not supported")),
        }
    }
    Ok(plan)
}

fn flatten<'a>(node: &'a Json, out: &mut Vec<&'a Json>) {
    match node.get("decoders").and_then(Json::as_array) {
        Some(list) => list.iter().for_each(|n| flatten(n, out)),
        None => out.push(node),
    }
}

fn add_strip(plan: &mut Plan, node: &Json, fused: bool) -> Result<(), String> {
    let content = one_char(node, "content")?;
    let count = |key: &str| node.get(key).and_then(Json::as_u64).unwrap_or(0);
    let (start, stop) = (count("start"), count("stop"));
    if !fused {
        plan.steps.push(Step::StripEach {
            content,
            start: start as usize,
            stop: stop as usize,
        });
        return Ok(());
    }
    if stop != 0 || !content.is_ascii() || start > 1024 || plan.strip_count != 0 {
        return Err("decoder Strip is only supported for ASCII at the start of the text".into());
    }
    plan.strip_byte = content as u8;
    plan.strip_count = start as u32;
    Ok(())
}

fn piece(steps: &[Step], token: &str, first: bool, to_byte: &dyn Fn(char) -> Option<u8>) -> Vec<u8> {
    let mut s = token.to_owned();
    for step in steps {
        match step {
            Step::Replace { from, to } if !from.is_empty() => s = s.replace(from, to),
            Step::Replace { .. } => {}
            Step::StripEach { content, start, stop } => s = strip_each(&s, *content, *start, *stop),
            Step::Metaspace { replacement, drops_first } => {
                let drop = first && *drops_first;
                s = s
                    .chars()
                    .filter(|c| !(drop && c == replacement))
                    .map(|c| if c == *replacement { ' ' } else { c })
                    .collect();
            }
            Step::WordPiece { prefix, cleanup } => {
                s = match s.strip_prefix(prefix.as_str()) {
                    _ if first => s,
                    Some(rest) => rest.to_owned(),
                    None => format!(" {s}"),
                };
                if *cleanup {
                    s = word_piece_cleanup(&s);
                }
            }
            Step::JoinBySpace if !first => s = format!(" {s}"),
            Step::JoinBySpace => {}
            Step::ByteFallback => {
                if let Some(byte) = fallback_byte(&s) {
                    return vec![byte];
                }
            }
            Step::ByteLevel => {
                let bytes: Option<Vec<u8>> = s.chars().map(to_byte).collect();
                return bytes.unwrap_or_else(|| s.into_bytes());
            }
        }
    }
    s.into_bytes()
}

/// `<0xE2>` → 0xE2.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

fn strip_each(s: &str, content: char, start: usize, stop: usize) -> String {
    let mut rest = s;
    for _ in 0..start {
        match rest.strip_prefix(content) {
            Some(r) => rest = r,
            None => break,
        }
    }
    for _ in 0..stop {
        match rest.strip_suffix(content) {
            Some(r) => rest = r,
            None => break,
        }
    }
    rest.to_owned()
}

/// The spaces that a WordPiece decoder takes back from around English punctuation.
fn word_piece_cleanup(s: &str) -> String {
    let mut out = s.to_owned();
    for (from, to) in [
        (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
        (" 'm", "'m"), (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
    ] {
        out = out.replace(from, to);
    }
    out
}

/// The inverse of GPT-2's table from bytes to printable characters: printable Latin-1 stands for
/// itself, the other 68 bytes were given U+0100 and up in order.
pub fn byte_level_map() -> impl Fn(char) -> Option<u8> {
    let printable = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let moved: Vec<u8> = (0..=255u8).filter(|b| !printable(*b)).collect();
    move |c: char| {
        let code = c as u32;
        if code < 256 {
            return printable(code as u8).then_some(code as u8);
        }
        moved.get((code - 256) as usize).copied()
    }
}
