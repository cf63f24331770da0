//! Python's `format % values`.

use crate::budget;
use crate::pyseq::{dict_get, index_of, string_like, Tuple};
use crate::pyvalue::{fail, float, repr_of, str_of, type_name};
use crate::scalars::escaped;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// Widths and precisions above it are refused: one hole could fill the memory.
pub const WIDTH_MAX: usize = 10_000;

#[derive(Default)]
pub struct Spec {
    pub minus: bool,
    pub plus: bool,
    pub space: bool,
    pub zero: bool,
    pub alternate: bool,
    pub width: usize,
    pub precision: Option<usize>,
}

/// The values of one `%`, taken one after another or by name.
struct Holes<'a> {
    all: &'a Value,
    in_turn: Vec<Value>,
    taken: usize,
    safe: bool,
}

impl Holes<'_> {
    fn next(&mut self) -> Result<Value, Error> {
        let value = self.in_turn.get(self.taken).cloned();
        self.taken += 1;
        value.ok_or_else(|| fail("not enough arguments for format string"))
    }

    fn number(&mut self) -> Result<i64, Error> {
        self.next()?.as_i64().ok_or_else(|| fail("* wants int"))
    }
}

/// `format % values`: a tuple is several values, everything else one.
pub fn percent(like: &Value, format: &str, values: &Value) -> Result<Value, Error> {
    let in_turn = match values.downcast_object_ref::<Tuple>() {
        Some(tuple) => tuple.0.clone(),
        None => vec![values.clone()],
    };
    let mut holes = Holes { all: values, in_turn, taken: 0, safe: like.is_safe() };
    let mut out = String::new();
    let mut named = false;
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut of_name = None;
        if rest.starts_with('(') {
            let end = rest.find(')').ok_or_else(|| fail("incomplete format key"))?;
            if values.kind() != ValueKind::Map {
                return Err(fail("format requires a mapping"));
            }
            let key = &rest[1..end];
            let found = dict_get(holes.all, &Value::from(key));
            of_name = Some(found.ok_or_else(|| fail(format!("'{key}'")))?);
            named = true;
            rest = &rest[end + 1..];
        }
        let (spec, after) = spec_of(rest, &mut holes)?;
        let kind = after.chars().next().ok_or_else(|| fail("incomplete format"))?;
        rest = &after[kind.len_utf8()..];
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match of_name {
            Some(value) => value,
            None => holes.next()?,
        };
        let text = converted(kind, &spec, &value, holes.safe)?;
        budget::check_size(out.len() + text.len() + spec.width)?;
        out.push_str(&text);
    }
    out.push_str(rest);
    let unused = holes.taken < holes.in_turn.len() && !named;
    let may_be_unused = matches!(values.kind(), ValueKind::Map)
        || (values.kind() == ValueKind::Seq && values.downcast_object_ref::<Tuple>().is_none());
    if unused && !(may_be_unused && holes.taken == 0) {
        return Err(fail("not all arguments converted during string formatting"));
    }
    Ok(string_like(like, out))
}

fn spec_of<'f>(mut rest: &'f str, holes: &mut Holes) -> Result<(Spec, &'f str), Error> {
    let mut spec = Spec::default();
    loop {
        match rest.as_bytes().first() {
            Some(b'-') => spec.minus = true,
            Some(b'+') => spec.plus = true,
            Some(b' ') => spec.space = true,
            Some(b'0') => spec.zero = true,
            Some(b'#') => spec.alternate = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    let mut number = |rest: &mut &'f str| -> Result<Option<i64>, Error> {
        if let Some(after) = rest.strip_prefix('*') {
            *rest = after;
            return holes.number().map(Some);
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let value = rest[..digits].parse().ok();
        if digits > 0 && value.is_none() {
            return Err(fail("width too big"));
        }
        *rest = &rest[digits..];
        Ok(value)
    };
    if let Some(width) = number(&mut rest)? {
        spec.minus |= width < 0;
        spec.width = width.unsigned_abs() as usize;
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        spec.precision = Some(number(&mut rest)?.unwrap_or(0).max(0) as usize);
    }
    if spec.width > WIDTH_MAX || spec.precision.is_some_and(|p| p > WIDTH_MAX) {
        return Err(fail(format!("a format's width is limited to {WIDTH_MAX}")));
    }
    let rest = rest.strip_prefix(['l', 'h', 'L']).unwrap_or(rest);
    Ok((spec, rest))
}

fn converted(kind: char, spec: &Spec, value: &Value, escape: bool) -> Result<String, Error> {
    let text = |text: String| {
        let text = if escape && !value.is_safe() { escaped(&text)? } else { text };
        let cut = spec.precision.map_or(text.clone(), |p| text.chars().take(p).collect());
        Ok(padded(spec, "", &cut, ' '))
    };
    match kind {
        's' => text(str_of(value)?),
        'r' => text(repr_of(value)?),
        'a' => text(repr_of(value)?.chars().map(ascii).collect()),
        'c' => match (value.as_str(), index_of(value)) {
            (Some(s), _) if s.chars().count() == 1 => text(s.to_owned()),
            (None, Some(code)) => {
                let c = u32::try_from(code).ok().and_then(char::from_u32);
                text(c.ok_or_else(|| fail("%c arg not in range(0x110000)"))?.to_string())
            }
            _ => Err(fail("%c requires int or char")),
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => integer(kind, spec, value),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let x = number(value)
                .ok_or_else(|| fail(format!("must be real number, not {}", type_name(value))))?;
            let digits = real(kind, spec, x.abs());
            let fill = if spec.zero && x.is_finite() { '0' } else { ' ' };
            Ok(padded(spec, sign(spec, x.is_sign_negative() && !x.is_nan()), &digits, fill))
        }
        other => Err(fail(format!("unsupported format character '{other}'"))),
    }
}

pub fn ascii(c: char) -> String {
    match c as u32 {
        0..=0x7f => c.to_string(),
        code @ 0x80..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

pub fn number(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn integer(kind: char, spec: &Spec, value: &Value) -> Result<String, Error> {
    let whole = match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        // %x takes no floats, %d cuts them.
        ValueKind::Number if !matches!(kind, 'x' | 'X' | 'o') => {
            let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
            if !x.is_finite() {
                return Err(fail("cannot convert float infinity or NaN to integer"));
            }
            Some(x.trunc() as i128)
        }
        _ => None,
    };
    let what = if matches!(kind, 'x' | 'X' | 'o') { "an integer" } else { "a real number" };
    let whole = whole.ok_or_else(|| {
        fail(format!("%{kind} format: {what} is required, not {}", type_name(value)))
    })?;
    let size = whole.unsigned_abs();
    let digits = match kind {
        'x' => format!("{size:x}"),
        'X' => format!("{size:X}"),
        'o' => format!("{size:o}"),
        _ => size.to_string(),
    };
    let least = spec.precision.unwrap_or(0);
    let digits = "0".repeat(least.saturating_sub(digits.len())) + &digits;
    let prefix = match kind {
        'x' if spec.alternate => "0x",
        'X' if spec.alternate => "0X",
        'o' if spec.alternate => "0o",
        _ => "",
    };
    let lead = format!("{}{prefix}", sign(spec, whole < 0));
    Ok(padded(spec, &lead, &digits, if spec.zero { '0' } else { ' ' }))
}

fn sign(spec: &Spec, negative: bool) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, _, _) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn padded(spec: &Spec, lead: &str, text: &str, fill: char) -> String {
    let missing = spec.width.saturating_sub(lead.chars().count() + text.chars().count());
    let run = |c: char| c.to_string().repeat(missing);
    match (spec.minus, fill) {
        (true, _) => format!("{lead}{text}{}", run(' ')),
        (false, '0') => format!("{lead}{}{text}", run('0')),
        _ => format!("{}{lead}{text}", run(' ')),
    }
}

/// A number that is not negative, as C's printf writes it.
pub fn real(kind: char, spec: &Spec, x: f64) -> String {
    let upper = kind.is_ascii_uppercase();
    let cased = |s: String| if upper { s.to_uppercase() } else { s };
    if !x.is_finite() {
        return cased(float(x, false));
    }
    let precision = spec.precision.unwrap_or(6);
    let scientific = |digits: usize| {
        let text = format!("{x:.digits$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        (mantissa.to_owned(), exponent.parse::<i32>().unwrap_or(0))
    };
    let point = |s: String| if spec.alternate && !s.contains('.') { s + "." } else { s };
    let with_exponent = |mantissa: String, exponent: i32| {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", point(mantissa), exponent.abs())
    };
    cased(match kind.to_ascii_lowercase() {
        'f' => point(format!("{x:.precision$}")),
        'e' => {
            let (mantissa, exponent) = scientific(precision);
            with_exponent(mantissa, exponent)
        }
        _ => {
            let precision = precision.max(1);
            let (mantissa, exponent) = scientific(precision - 1);
            let trim = |s: String| match s.contains('.') && !spec.alternate {
                true => s.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => s,
            };
            if exponent < -4 || exponent >= precision as i32 {
                with_exponent(trim(mantissa), exponent)
            } else {
                let places = (precision as i32 - 1 - exponent) as usize;
                point(trim(format!("{x:.places$}")))
            }
        }
    })
}
