//! Python's `format.format(…)` and its mini-language.

use crate::budget;
use crate::pyformat::{ascii, number, real, Spec, WIDTH_MAX};
use crate::pyseq::{dict_get, index_of, is_dict, item};
use crate::pyvalue::{fail, repr_of, str_of, type_name, Args};
use crate::scalars::escaped;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// Where the next unnamed field takes its value from.
struct Fields<'a> {
    args: Args<'a>,
    next: Option<usize>,
    safe: bool,
}

pub fn format(like: &Value, args: &[Value]) -> Result<String, Error> {
    let mut fields = Fields { args: Args::new(args)?, next: Some(0), safe: like.is_safe() };
    written(like.as_str().unwrap_or(""), &mut fields, 0)
}

/// The text with its fields filled in; a field's format may have fields too.
fn written(text: &str, fields: &mut Fields, depth: usize) -> Result<String, Error> {
    if depth > 1 {
        return Err(fail("Max string recursion exceeded"));
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(fail("Single '}' encountered in format string"));
        }
        let end = field_end(rest).ok_or_else(|| fail("expected '}' before end of string"))?;
        let shown = field(&rest[..end], fields, depth)?;
        budget::check_size(out.len() + shown.len())?;
        out.push_str(&shown);
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Where the bracket closes that was opened before `text`.
fn field_end(text: &str) -> Option<usize> {
    let mut open = 1;
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(i);
        }
    }
    None
}

/// `name!conversion:spec`.
fn field(text: &str, fields: &mut Fields, depth: usize) -> Result<String, Error> {
    let (head, spec) = match text.find([':', '!']) {
        Some(at) if text[at..].starts_with('!') => {
            let (conversion, spec) =
                text[at + 1..].split_once(':').unwrap_or((&text[at + 1..], ""));
            ((&text[..at], Some(conversion)), spec)
        }
        Some(at) => ((&text[..at], None), &text[at + 1..]),
        None => ((text, None), ""),
    };
    let value = looked_up(head.0, fields)?;
    let value = match head.1 {
        None => value,
        Some("r") => Value::from(repr_of(&value)?),
        Some("s") => Value::from(str_of(&value)?),
        Some("a") => Value::from(repr_of(&value)?.chars().map(ascii).collect::<String>()),
        Some(other) => return Err(fail(format!("Unknown conversion specifier '{other}'"))),
    };
    let spec = written(spec, fields, depth + 1)?;
    let shown = formatted(&value, &spec)?;
    if fields.safe && !value.is_safe() {
        return escaped(&shown);
    }
    Ok(shown)
}

/// The value of `0.name[key]`, with or without its first part.
fn looked_up(path: &str, fields: &mut Fields) -> Result<Value, Error> {
    let first = path.find(['.', '[']).unwrap_or(path.len());
    let (name, mut rest) = path.split_at(first);
    let place = match name.parse::<usize>() {
        Ok(place) => {
            if fields.next.is_some_and(|next| next > 0) {
                return Err(fail("cannot switch from automatic field numbering to manual"));
            }
            fields.next = None;
            Some(place)
        }
        Err(_) if name.is_empty() => {
            let next = fields.next.ok_or_else(|| {
                fail("cannot switch from manual field specification to automatic field numbering")
            })?;
            fields.next = Some(next + 1);
            Some(next)
        }
        Err(_) => None,
    };
    let mut value = match place {
        Some(place) => fields.args.positional().get(place).cloned().ok_or_else(|| {
            fail(format!("Replacement index {place} out of range for positional args tuple"))
        })?,
        None => fields.args.named(name).ok_or_else(|| fail(format!("'{name}'")))?,
    };
    while !rest.is_empty() {
        let missing = || fail(format!("nothing to format at '{path}'"));
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = match is_dict(&value) {
                true => return Err(missing()),
                false => value.get_attr(&after[..end])?,
            };
            rest = &after[end..];
        } else {
            let inner = rest.strip_prefix('[').ok_or_else(missing)?;
            let end = inner.find(']').ok_or_else(|| fail("Missing ']' in format string"))?;
            let key = match inner[..end].parse::<u32>() {
                Ok(index) => Value::from(index),
                Err(_) => Value::from(&inner[..end]),
            };
            value = match is_dict(&value) {
                true => dict_get(&value, &key).ok_or_else(missing)?,
                false => item(&value, &key)?,
            };
            rest = &inner[end + 1..];
        }
        if value.is_undefined() {
            return Err(missing());
        }
    }
    Ok(value)
}

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`, read.
#[derive(Default)]
struct Mini {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

fn mini(spec: &str) -> Result<Mini, Error> {
    let mut found = Mini::default();
    let chars: Vec<char> = spec.chars().collect();
    let mut at = 0;
    let is_align = |c: Option<&char>| c.is_some_and(|c| "<>=^".contains(*c));
    if is_align(chars.get(1)) {
        (found.fill, found.align) = (Some(chars[0]), Some(chars[1]));
        at = 2;
    } else if is_align(chars.first()) {
        found.align = Some(chars[0]);
        at = 1;
    }
    let take = |set: &str, at: &mut usize| -> Option<char> {
        let c = chars.get(*at).copied().filter(|c| set.contains(*c))?;
        *at += 1;
        Some(c)
    };
    found.sign = take("+- ", &mut at);
    found.alternate = take("#", &mut at).is_some();
    found.zero = take("0", &mut at).is_some();
    let digits = |at: &mut usize| -> Result<Option<usize>, Error> {
        let mut value: Option<usize> = None;
        while let Some(digit) = chars.get(*at).and_then(|c| c.to_digit(10)) {
            value = Some(value.unwrap_or(0).saturating_mul(10).saturating_add(digit as usize));
            *at += 1;
        }
        if value.is_some_and(|v| v > WIDTH_MAX) {
            return Err(fail(format!("a format's width is limited to {WIDTH_MAX}")));
        }
        Ok(value)
    };
    found.width = digits(&mut at)?.unwrap_or(0);
    found.group = take(",_", &mut at);
    if take(".", &mut at).is_some() {
        let places = digits(&mut at)?.ok_or_else(|| fail("Format specifier missing precision"))?;
        found.precision = Some(places);
    }
    if at < chars.len() {
        found.kind = Some(chars[at]);
        at += 1;
    }
    if at < chars.len() {
        return Err(fail(format!("Invalid format specifier '{spec}'")));
    }
    Ok(found)
}

/// `format(value, spec)`.
fn formatted(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return str_of(value);
    }
    let mini = mini(spec)?;
    let unknown = |kind: char| {
        let of = type_name(value);
        fail(format!("Unknown format code '{kind}' for object of type '{of}'"))
    };
    if let Some(text) = value.as_str() {
        if let Some(kind) = mini.kind.filter(|k| *k != 's') {
            return Err(unknown(kind));
        }
        if mini.sign.is_some() || mini.alternate || mini.group.is_some() || mini.align == Some('=')
        {
            return Err(fail("Invalid format specifier for a str"));
        }
        let cut = match mini.precision {
            Some(places) => text.chars().take(places).collect(),
            None => text.to_owned(),
        };
        return Ok(aligned(&mini, "", &cut, '<'));
    }
    let x = number(value).ok_or_else(|| {
        fail(format!("unsupported format string passed to {}.__format__", type_name(value)))
    })?;
    let whole = index_of(value).is_some();
    let kind = mini.kind.unwrap_or(if whole { 'd' } else { 'r' });
    match kind {
        'd' | 'n' | 'b' | 'o' | 'x' | 'X' | 'c' if whole => integer(&mini, kind, value),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%' => Ok(real_number(&mini, kind, x)),
        'n' => Ok(real_number(&mini, 'g', x)),
        'r' if mini.kind.is_none() => Ok(real_number(&mini, 'r', x)),
        kind => Err(unknown(kind)),
    }
}

fn integer(mini: &Mini, kind: char, value: &Value) -> Result<String, Error> {
    if mini.precision.is_some() {
        return Err(fail("Precision not allowed in integer format specifier"));
    }
    let whole = match value.kind() {
        ValueKind::Bool => i128::from(value.is_true()),
        _ => i128::try_from(value.clone())?,
    };
    if kind == 'c' {
        let c = u32::try_from(whole).ok().and_then(char::from_u32);
        let c = c.ok_or_else(|| fail("%c arg not in range(0x110000)"))?;
        return Ok(aligned(mini, "", &c.to_string(), '<'));
    }
    let size = whole.unsigned_abs();
    let (prefix, digits) = match kind {
        'b' => ("0b", format!("{size:b}")),
        'o' => ("0o", format!("{size:o}")),
        'x' => ("0x", format!("{size:x}")),
        'X' => ("0X", format!("{size:X}")),
        _ => ("", size.to_string()),
    };
    if mini.group == Some(',') && !prefix.is_empty() {
        return Err(fail(format!("Cannot specify ',' with '{kind}'.")));
    }
    let lead = format!("{}{}", sign(mini, whole < 0), if mini.alternate { prefix } else { "" });
    let step = if prefix.is_empty() { 3 } else { 4 };
    Ok(aligned(mini, &lead, &grouped(mini, &lead, &digits, "", step), '>'))
}

fn real_number(mini: &Mini, kind: char, x: f64) -> String {
    let spec = Spec { alternate: mini.alternate, precision: mini.precision, ..Spec::default() };
    let size = x.abs();
    let text = match kind {
        '%' => real('f', &spec, size * 100.0) + "%",
        'r' if mini.precision.is_none() => crate::pyvalue::float(size, false),
        'r' => {
            // As 'g', but with a digit after the point where there is no exponent.
            let short = real('g', &spec, size);
            if size.is_finite() && !short.contains(['.', 'e']) {
                short + ".0"
            } else {
                short
            }
        }
        kind => real(kind, &spec, size),
    };
    let lead = sign(mini, x.is_sign_negative() && !x.is_nan()).to_owned();
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(whole);
    aligned(mini, &lead, &grouped(mini, &lead, digits, rest, 3), '>')
}

fn sign(mini: &Mini, negative: bool) -> &'static str {
    match (negative, mini.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    }
}

/// Digits in groups, with the zeros of `0` width among them, and what follows them.
fn grouped(mini: &Mini, lead: &str, digits: &str, rest: &str, step: usize) -> String {
    let zeros = mini.zero && mini.align.is_none();
    let mut width = if zeros { mini.width.saturating_sub(lead.len() + rest.len()) } else { 0 };
    let Some(group) = mini.group.filter(|_| !digits.is_empty()) else {
        return digits.to_owned() + rest;
    };
    let mut digits = digits.to_owned();
    width = width.saturating_sub((width.max(1) - 1) / (step + 1)).max(digits.len());
    digits = "0".repeat(width - digits.len()) + &digits;
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % step == 0 {
            out.push(group);
        }
        out.push(digit);
    }
    out + rest
}

fn aligned(mini: &Mini, lead: &str, text: &str, otherwise: char) -> String {
    let missing = mini.width.saturating_sub(lead.chars().count() + text.chars().count());
    let zeros = mini.zero && mini.fill.is_none();
    let fill = mini.fill.unwrap_or(if zeros { '0' } else { ' ' });
    let run = |n: usize| fill.to_string().repeat(n);
    let inside = if zeros && otherwise == '>' { '=' } else { otherwise };
    match mini.align.unwrap_or(inside) {
        '<' => format!("{lead}{text}{}", run(missing)),
        '^' => format!("{}{lead}{text}{}", run(missing / 2), run(missing.div_ceil(2))),
        '=' => format!("{lead}{}{text}", run(missing)),
        _ => format!("{}{lead}{text}", run(missing)),
    }
}
