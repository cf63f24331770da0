//! Tokens that a model folder declares beside tokenizer.json, added in the order that transformers adds them: where the
//! vocabulary lacks a token, its id is the next free one, so the order decides the ids.

use serde_json::Value as Json;
use std::collections::{BTreeMap, HashMap, HashSet};
use tokenizers::{AddedToken, Tokenizer};

/// What the files beside tokenizer.json say. Made by src/text/hf_special_tokens.cc.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub struct Declared {
    /// `added_tokens_decoder`, or added_tokens.json.
    by_id: Vec<(i64, Flags)>,
    /// Whether tokenizer.json's own added tokens are declared once more and win over those of their id.
    with_own: bool,
    /// Tokens with a role ("eos_token", …).
    roles: Vec<Flags>,
    extras: Vec<Flags>,
}

/// An AddedToken as JSON holds it; what it does not say is as Python's constructor has it.
#[derive(Clone, Default, serde::Deserialize)]
#[serde(default)]
struct Flags {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: Option<bool>,
    special: bool,
}

impl Flags {
    fn token(&self) -> AddedToken {
        AddedToken::from(self.content.clone(), self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
    }
}

/// The tokens to add, in order.
fn listed(declared: Declared, own: &[Json], tokenizer: &Tokenizer) -> Result<Vec<AddedToken>, String> {
    // A later declaration of an id replaces an earlier one.
    let mut by_id: BTreeMap<i64, Flags> = declared.by_id.iter().cloned().collect();
    if declared.with_own {
        for token in own {
            let id = token.get("id").and_then(Json::as_i64).ok_or("an added token has no id")?;
            let flags = serde_json::from_value(token.clone()).map_err(|e| e.to_string())?;
            by_id.insert(id, flags);
        }
    }
    let roles: HashSet<&str> = declared.roles.iter().map(|t| t.content.as_str()).collect();
    let mut known: HashSet<String> =
        tokenizer.get_added_vocabulary().get_vocab().keys().cloned().collect();
    let mut tokens = Vec::new();
    for mut flags in by_id.into_values() {
        flags.special |= roles.contains(flags.content.as_str());
        known.insert(flags.content.clone());
        tokens.push(flags.token());
    }
    // A role's token has the flags of its entry there, even of one whose id another token took.
    let entries: HashMap<&str, &Flags> =
        declared.by_id.iter().map(|(_, t)| (t.content.as_str(), t)).collect();
    let of_role = |role: &Flags| {
        let flags = entries.get(role.content.as_str()).copied().unwrap_or(role);
        Flags { special: true, ..flags.clone() }
    };
    let of_roles: Vec<Flags> = declared.roles.iter().map(of_role).collect();
    for flags in of_roles.iter().chain(&declared.extras) {
        if !known.contains(&flags.content) {
            let special = flags.special || roles.contains(flags.content.as_str());
            tokens.push(Flags { special, ..flags.clone() }.token());
        }
    }
    Ok(tokens)
}

/// Adds what `declared` (JSON) names. `own`: the added_tokens of tokenizer.json.
pub fn add(tokenizer: &mut Tokenizer, declared: &[u8], own: &[Json]) -> Result<(), String> {
    if declared.is_empty() {
        return Ok(());
    }
    let declared = serde_json::from_slice(declared).map_err(|e| format!("added tokens: {e}"))?;
    let tokens = listed(declared, own, tokenizer)?;
    let there = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
    let mut all: Vec<(u32, AddedToken)> = there.iter().map(|(id, t)| (*id, t.clone())).collect();
    all.sort_by_key(|(id, _)| *id);
    let mut unique: Vec<AddedToken> = Vec::with_capacity(all.len() + tokens.len());
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut redeclared = false;
    for token in all.into_iter().map(|(_, token)| token).chain(tokens) {
        match places.get(&token.content) {
            Some(place) => {
                let before = &mut unique[*place];
                let special = before.special || token.special;
                redeclared |= *before != token;
                *before = token;
                before.special = special;
            }
            None => {
                places.insert(token.content.clone(), unique.len());
                unique.push(token);
            }
        }
    }
    if redeclared {
        // The library looks for a token in each form it was declared with; transformers' version of it in the last one.
        *tokenizer = without_added_tokens(tokenizer);
    }
    tokenizer.add_tokens(&unique);
    Ok(())
}

fn without_added_tokens(tokenizer: &Tokenizer) -> Tokenizer {
    let mut bare = Tokenizer::new(tokenizer.get_model().clone());
    bare.with_normalizer(tokenizer.get_normalizer().cloned());
    bare.with_pre_tokenizer(tokenizer.get_pre_tokenizer().cloned());
    bare.with_post_processor(tokenizer.get_post_processor().cloned());
    bare.with_decoder(tokenizer.get_decoder().cloned());
    bare
}
