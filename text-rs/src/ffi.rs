//! The C ABI of include/sixfold_text.h. Every entry catches panics: none may cross into C++.

use crate::pieces::Table;
use crate::template::{self, Failure, Limits, Variables};
use crate::tokenizer::TextTokenizer;
use crate::{gguf, template::FailureKind};
use std::panic::{catch_unwind, AssertUnwindSafe};

const OK: i32 = 0;
const INVALID: i32 = 1;
const RAISED: i32 = 2;
const LIMIT: i32 = 3;
const INTERNAL: i32 = 4;

const ADD_SPECIAL: u32 = 1;
const PARSE_SPECIAL: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slice {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct Buffer {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Strings {
    data: Slice,
    offsets: *const u64,
    count: usize,
}

#[repr(C)]
pub struct GgufVocab {
    model: Slice,
    pre: Slice,
    tokens: Strings,
    merges: Strings,
    types: *const i32,
    types_count: usize,
    scores: *const f32,
    scores_count: usize,
    charsmap: Slice,
    bos_id: i64,
    eos_id: i64,
    unk_id: i64,
    add_bos: i32,
    add_eos: i32,
    add_space_prefix: i32,
    remove_extra_whitespaces: i32,
}

#[repr(C)]
pub struct TokenTable {
    vocab_size: usize,
    flags: *const u8,
    pieces: Strings,
    first: Strings,
    repair_per_byte: i32,
    strip_count: u32,
    strip_byte: u8,
}

#[repr(C)]
pub struct Variable {
    name: Slice,
    value: Slice,
    kind: i32,
}

#[repr(C)]
pub struct TemplateLimits {
    steps_max: u64,
    output_bytes_max: u64,
    time_ms_max: u64,
}

impl Slice {
    /// Safety: `data` points to `size` readable bytes that outlive `'a`, or `size` is 0.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        array(self.data, self.size)
    }

    unsafe fn text<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(self.bytes()).map_err(|e| {
            Failure::invalid(format!("{what} is not valid UTF-8 at byte {}", e.valid_up_to()))
        })
    }

    fn of(bytes: &[u8]) -> Slice {
        Slice { data: bytes.as_ptr(), size: bytes.len() }
    }
}

unsafe fn array<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, count)
    }
}

impl Strings {
    const NONE: Strings = Strings {
        data: Slice { data: std::ptr::null(), size: 0 },
        offsets: std::ptr::null(),
        count: 0,
    };

    fn of(table: &Table) -> Strings {
        Strings {
            data: Slice::of(&table.bytes),
            offsets: table.offsets.as_ptr(),
            count: table.offsets.len() - 1,
        }
    }

    unsafe fn texts<'a>(self, what: &str) -> Result<Vec<&'a str>, Failure> {
        let bytes = self.data.bytes();
        let offsets = if self.count == 0 { &[] } else { array(self.offsets, self.count + 1) };
        let mut out = Vec::with_capacity(self.count);
        for (i, pair) in offsets.windows(2).enumerate() {
            let part = bytes.get(pair[0] as usize..pair[1] as usize);
            let part = part.ok_or_else(|| Failure::invalid(format!("{what} {i} is out of range")))?;
            let text = std::str::from_utf8(part)
                .map_err(|_| Failure::invalid(format!("{what} {i} is not valid UTF-8")))?;
            out.push(text);
        }
        Ok(out)
    }
}

impl Buffer {
    fn of(bytes: Vec<u8>) -> Buffer {
        let mut bytes = std::mem::ManuallyDrop::new(bytes);
        Buffer { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
    }
}

/// Runs `body`, turning a failure or a panic into a code and a message.
unsafe fn guard(error: *mut Buffer, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    template::quiet_panics();
    *error = Buffer::of(Vec::new());
    let (code, message) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(failure)) => (code_of(failure.kind), failure.message),
        Err(payload) => (INTERNAL, template::panic_text(&*payload)),
    };
    *error = Buffer::of(message.into_bytes());
    code
}

fn code_of(kind: FailureKind) -> i32 {
    match kind {
        FailureKind::Invalid => INVALID,
        FailureKind::Raised => RAISED,
        FailureKind::Limit => LIMIT,
        FailureKind::Internal => INTERNAL,
    }
}

/// # Safety
/// `buffer` was filled by this crate and not freed since.
#[no_mangle]
pub unsafe extern "C" fn sixfold_buffer_free(buffer: *mut Buffer) {
    let b = &mut *buffer;
    if !b.data.is_null() {
        drop(Vec::from_raw_parts(b.data, b.size, b.capacity));
    }
    *b = Buffer { data: std::ptr::null_mut(), size: 0, capacity: 0 };
}

/// # Safety
/// As the header says; the same holds for every function below.
#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_from_json(
    json: Slice,
    declared: Slice,
    out: *mut *mut TextTokenizer,
    error: *mut Buffer,
) -> i32 {
    *out = std::ptr::null_mut();
    guard(error, || {
        let tokenizer = TextTokenizer::from_json(json.bytes(), declared.bytes())
            .map_err(Failure::invalid)?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_from_gguf(
    vocab: *const GgufVocab,
    out: *mut *mut TextTokenizer,
    error: *mut Buffer,
) -> i32 {
    *out = std::ptr::null_mut();
    guard(error, || {
        let v = &*vocab;
        let model = v.model.text("the tokenizer model's name")?;
        let pre = v.pre.text("the pre-tokenizer's name")?;
        let id = |value: i64, what: &str| match value {
            i64::MIN..=-1 => Ok(None),
            _ => match u32::try_from(value) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(Failure::invalid(format!("{what} id {value} is out of range"))),
            },
        };
        let (bos, eos) = (id(v.bos_id, "BOS")?, id(v.eos_id, "EOS")?);
        let add_bos = match v.add_bos {
            0 => false,
            1 => true,
            _ => gguf::adds_bos_by_default(model, pre),
        };
        let add_eos = v.add_eos == 1 || (v.add_eos < 0 && model == "t5");
        for (what, asked, id) in [("bos", v.add_bos == 1, bos), ("eos", v.add_eos == 1, eos)] {
            if asked && id.is_none() {
                return Err(Failure::invalid(format!(
                    "tokenizer.ggml.{what}_token_id is missing, and tokenizer.ggml.add_{what}_token is true: \
                     convert the model again, or name its tokenizer with --tokenizer"
                )));
            }
        }
        let tokenizer = gguf::build(&gguf::Vocab {
            model,
            pre,
            tokens: v.tokens.texts("token")?,
            types: array(v.types, v.types_count),
            scores: array(v.scores, v.scores_count),
            merges: v.merges.texts("merge")?,
            unk: id(v.unk_id, "unknown token")?,
            prefix: bos.filter(|_| add_bos).into_iter().collect(),
            suffix: eos.filter(|_| add_eos).into_iter().collect(),
            add_space_prefix: v.add_space_prefix != 0,
            remove_extra_whitespaces: v.remove_extra_whitespaces != 0,
            charsmap: v.charsmap.bytes(),
        })
        .map_err(Failure::invalid)?;
        *out = Box::into_raw(Box::new(tokenizer));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_set_bos(tokenizer: *mut TextTokenizer, bos_id: i64) {
    (*tokenizer).set_bos(u32::try_from(bos_id).ok());
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_free(tokenizer: *mut TextTokenizer) {
    if !tokenizer.is_null() {
        let tokenizer = AssertUnwindSafe(Box::from_raw(tokenizer));
        let _ = catch_unwind(move || drop(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    text: Slice,
    flags: u32,
    ids: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    *ids = Buffer::of(Vec::new());
    guard(error, || {
        let text = text.text("text")?;
        let mut found = Vec::new();
        (*tokenizer)
            .encode(text, flags & ADD_SPECIAL != 0, flags & PARSE_SPECIAL != 0, &mut found)
            .map_err(Failure::invalid)?;
        let bytes = found.iter().flat_map(|id| id.to_le_bytes()).collect();
        *ids = Buffer::of(bytes);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_token_id(
    tokenizer: *const TextTokenizer,
    token: Slice,
) -> i64 {
    let find = || match std::str::from_utf8(token.bytes()) {
        Ok(text) => (*tokenizer).token_to_id(text).map_or(-1, i64::from),
        Err(_) => -1,
    };
    catch_unwind(AssertUnwindSafe(find)).unwrap_or(-1)
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_token_text(
    tokenizer: *const TextTokenizer,
    id: u32,
) -> Slice {
    match catch_unwind(AssertUnwindSafe(|| (*tokenizer).token(id))) {
        Ok(Some(text)) => Slice::of(text.as_bytes()),
        _ => Slice { data: std::ptr::null(), size: 0 },
    }
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_table(
    tokenizer: *const TextTokenizer,
    out: *mut TokenTable,
) {
    let pieces = &(*tokenizer).pieces;
    *out = TokenTable {
        vocab_size: pieces.flags.len(),
        flags: pieces.flags.as_ptr(),
        pieces: Strings::of(&pieces.table),
        first: pieces.first.as_ref().map_or(Strings::NONE, Strings::of),
        repair_per_byte: pieces.repair as i32,
        strip_count: pieces.strip_count,
        strip_byte: pieces.strip_byte,
    };
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_tokenizer_reference_decode(
    tokenizer: *const TextTokenizer,
    ids: *const u32,
    count: usize,
    skip_special: i32,
    text: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    *text = Buffer::of(Vec::new());
    guard(error, || {
        let decoded = (*tokenizer)
            .reference_decode(array(ids, count), skip_special != 0)
            .map_err(Failure::invalid)?;
        *text = Buffer::of(decoded.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_template_check(source: Slice, error: *mut Buffer) -> i32 {
    guard(error, || template::check(source.text("template")?))
}

#[no_mangle]
pub unsafe extern "C" fn sixfold_template_render(
    source: Slice,
    variables: *const Variable,
    variable_count: usize,
    now_s: i64,
    limits: *const TemplateLimits,
    text: *mut Buffer,
    error: *mut Buffer,
) -> i32 {
    *text = Buffer::of(Vec::new());
    guard(error, || {
        let limits = Limits {
            steps: (*limits).steps_max,
            bytes: (*limits).output_bytes_max,
            time_ms: (*limits).time_ms_max,
        };
        let mut found = Vec::new();
        for variable in array(variables, variable_count) {
            let name = variable.name.text("a template variable's name")?;
            let value = match variable.kind {
                1 => Variables::Text(variable.value.text(name)?),
                2 => Variables::Object(variable.value.bytes()),
                _ => Variables::Json(variable.value.bytes()),
            };
            found.push((name, value));
        }
        let rendered = template::render(source.text("template")?, &found, now_s, limits)?;
        *text = Buffer::of(rendered.into_bytes());
        Ok(())
    })
}
