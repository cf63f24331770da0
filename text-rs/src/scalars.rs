//! Jinja2's filters of single values: numbers from text and back, and text that is cut, quoted or escaped.

use crate::budget;
use crate::pymethods;
use crate::pyops;
use crate::pyseq::{is_dict, items_of, string_like};
use crate::pyvalue::{fail, pairs, str_of, type_name, Args};
use crate::sequences;
use minijinja::value::{Rest, ValueKind};
use minijinja::{Error, Value};

pub fn indent(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    if value.as_str().is_none() {
        return Err(fail(format!("indent takes a str, not {}", type_name(&value))));
    }
    let args = Args::new(&args)?;
    let width = match args.get(0, "width") {
        None => "    ".to_owned(),
        Some(v) => match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(v.as_i64().unwrap_or(4).clamp(0, 1000) as usize),
        },
    };
    let (first, blank) = (args.flag(1, "first"), args.flag(2, "blank"));
    let text = str_of(&value)? + "\n"; // Jinja2 adds one too: its lines end where str.splitlines says
    let lines = pymethods::split_lines(&text, false);
    budget::check_size(text.len() + lines.len().saturating_mul(width.len()))?;
    let mut out = String::new();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(string_like(&value, out))
}

/// What markupsafe writes; what is safe already stays as it is.
pub fn escape(value: Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value);
    }
    escaped(&str_of(&value)?).map(Value::from_safe_string)
}

pub fn escaped(text: &str) -> Result<String, Error> {
    budget::check_size(text.len() * 5)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(out)
}

/// `float(value)` of Python; `None` where it raises.
fn float_of(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => digits_of(text)?.parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None if value.kind() == ValueKind::Number => f64::try_from(value.clone()).ok(),
        None => None,
    }
}

/// A number's text without white space around it and without underscores between its digits; `None`
/// where they are elsewhere.
fn digits_of(text: &str) -> Option<String> {
    let text = text.trim();
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_alphanumeric);
    let between = |i: usize| i > 0 && digit(i - 1) && digit(i + 1);
    let places = text.match_indices('_').map(|(i, _)| i);
    places.into_iter().all(between).then(|| text.replace('_', ""))
}

fn defined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(fail("a value is undefined"));
    }
    Ok(())
}

/// `int(text, base)` of Python; base 0 goes by the prefix.
fn int_of(text: &str, base: i64) -> Option<i128> {
    let digits = digits_of(text)?;
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let lower = digits.to_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (base == *of || base == 0));
    let (digits, radix) = match prefixed {
        Some((prefix, of)) => (&lower[prefix.len()..], of),
        None if base == 0 => (&lower[..], 10),
        None => (&lower[..], base),
    };
    if !(2..=36).contains(&radix) || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(digits, radix as u32).ok().map(|number| sign * number)
}

/// `int(value)` of Python, with Jinja2's default for what is no number.
pub fn int(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    defined(&value)?;
    let args = Args::new(&args)?;
    let default = args.get(0, "default").unwrap_or(Value::from(0));
    if value.is_integer() {
        return Ok(value);
    }
    let base = args.int(1, "base")?.unwrap_or(10);
    if let Some(number) = value.as_str().and_then(|text| int_of(text, base)) {
        return Ok(pyops::int(number));
    }
    match float_of(&value) {
        Some(x) if x.is_finite() && x.abs() < 1e38 => Ok(pyops::int(x.trunc() as i128)),
        Some(x) if !x.is_nan() && value.as_str().is_none() => Err(fail(format!(
            "cannot convert float {} to integer",
            if x.is_finite() { "of this size" } else { "infinity" }
        ))),
        _ => Ok(default),
    }
}

pub fn float(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    defined(&value)?;
    let default = Args::new(&args)?.get(0, "default").unwrap_or(Value::from(0.0));
    Ok(float_of(&value).map_or(default, Value::from))
}

pub fn round(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let places = args.int(0, "precision")?.unwrap_or(0).clamp(-30, 30);
    let method = args.get(1, "method").map(|m| str_of(&m)).transpose()?;
    let number = float_of(&value).filter(|_| value.as_str().is_none());
    let x = number.ok_or_else(|| {
        fail(format!("type {} doesn't define __round__ method", type_name(&value)))
    })?;
    let scale = 10f64.powi(places as i32);
    let up_or_down: fn(f64) -> f64 = match method.as_deref() {
        None | Some("common") => return Ok(rounded(&value, x, places)),
        Some("ceil") => f64::ceil,
        Some("floor") => f64::floor,
        Some(_) => return Err(fail("method must be common, ceil or floor")),
    };
    if !x.is_finite() {
        return Err(fail("cannot convert float infinity or NaN to integer"));
    }
    let scaled = up_or_down(x * scale);
    Ok(Value::from((scaled + 0.0) / scale))
}

/// `round(value, places)`, half to even.
fn rounded(value: &Value, x: f64, places: i64) -> Value {
    if value.is_integer() || value.kind() == ValueKind::Bool {
        let Ok(whole) = i128::try_from(value.clone()) else { return value.clone() };
        if places >= 0 {
            return pyops::int(whole);
        }
        let unit = 10i128.pow(places.unsigned_abs() as u32);
        let (down, rest) = (whole.div_euclid(unit), whole.rem_euclid(unit));
        let up = rest * 2 > unit || (rest * 2 == unit && down % 2 != 0);
        return pyops::int((down + i128::from(up)).saturating_mul(unit));
    }
    if places < 0 {
        let scale = 10f64.powi(-places as i32);
        return Value::from((x / scale).round_ties_even() * scale);
    }
    // The shortest text of so many places, ties to even, is what Python rounds to.
    Value::from(format!("{x:.0$}", places as usize).parse().unwrap_or(x))
}

/// Words start after white space, a hyphen or an opening bracket.
pub fn title(value: Value) -> Result<String, Error> {
    let text = str_of(&value)?;
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        let divides = pymethods::is_space(c) || "-({[<".contains(c);
        match starts && !divides {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        starts = divides;
    }
    Ok(out)
}

pub fn truncate(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let length = args.int(0, "length")?.unwrap_or(255);
    let end = args.get(2, "end").map_or(Ok("...".to_owned()), |v| str_of(&v))?;
    let leeway = args.int(3, "leeway")?.unwrap_or(5);
    let room = length - end.chars().count() as i64;
    if room < 0 || leeway < 0 {
        return Err(fail(format!("expected length >= {}, got {length}", end.chars().count())));
    }
    let size = match value.as_str() {
        Some(text) => text.chars().count(),
        None => sequences::length(value.clone())?,
    };
    if size as i64 <= length.saturating_add(leeway) {
        return Ok(value);
    }
    let text = value
        .as_str()
        .ok_or_else(|| fail(format!("only a str is cut, not {}", type_name(&value))))?;
    let cut: String = text.chars().take(room as usize).collect();
    let kept = match cut.rsplit_once(' ') {
        Some((words, _)) if !args.flag(1, "killwords") => words,
        _ => &cut,
    };
    pyops::add(&string_like(&value, kept.to_owned()), &Value::from(end))
}

pub fn filesizeformat(value: Value, args: Rest<Value>) -> Result<String, Error> {
    let binary = Args::new(&args)?.flag(0, "binary");
    let kind = type_name(&value);
    let bytes = float_of(&value).filter(|x| x.is_finite());
    let bytes = bytes.ok_or_else(|| fail(format!("a size must be a number, not '{kind}'")))?;
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc() as i128));
    }
    let prefixes = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let mut unit = base;
    let mut prefix = "";
    for each in prefixes {
        unit *= base;
        prefix = each;
        if bytes < unit {
            break;
        }
    }
    let prefix = if binary { format!("{}iB", prefix.to_uppercase()) } else { format!("{prefix}B") };
    Ok(format!("{:.1} {prefix}", base * bytes / unit))
}

fn url_quoted(value: &Value, keep: &str, space: &str) -> Result<String, Error> {
    let text = str_of(value)?;
    budget::check_size(text.len().saturating_mul(3))?;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' => out.push_str(space),
            b if b.is_ascii_alphanumeric()
                || b"_.-~".contains(&b)
                || keep.as_bytes().contains(&b) =>
            {
                out.push(b as char)
            }
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    Ok(out)
}

pub fn urlencode(value: Value) -> Result<String, Error> {
    let pairs = match value.kind() {
        ValueKind::Map => pairs(&value),
        ValueKind::Seq | ValueKind::Iterable => {
            let mut all = Vec::new();
            for pair in items_of(&value)? {
                match &items_of(&pair)?[..] {
                    [key, value] => all.push((key.clone(), value.clone())),
                    _ => return Err(fail("urlencode takes pairs of key and value")),
                }
            }
            all
        }
        _ => return url_quoted(&value, "/", "%20"),
    };
    let quoted = |(key, value): &(Value, Value)| {
        Ok(format!("{}={}", url_quoted(key, "", "+")?, url_quoted(value, "", "+")?))
    };
    pairs.iter().map(quoted).collect::<Result<Vec<_>, Error>>().map(|parts| parts.join("&"))
}

pub fn xmlattr(value: Value, args: Rest<Value>) -> Result<String, Error> {
    if !is_dict(&value) {
        return Err(fail(format!("'{}' object has no attribute 'items'", type_name(&value))));
    }
    let mut out = String::new();
    for (key, value) in pairs(&value) {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let Some(name) = key.as_str() else {
            return Err(fail(format!(
                "expected string or bytes-like object, got '{}'",
                type_name(&key)
            )));
        };
        if name.contains(|c: char| pymethods::is_space(c) || "/>=".contains(c)) {
            return Err(fail(format!("Invalid character in attribute name: '{name}'")));
        }
        let (name, value) = (escaped(name)?, str_of(&escape(value)?)?);
        budget::check_size(out.len() + name.len() + value.len())?;
        out.push_str(&format!(" {name}=\"{value}\""));
    }
    let with_space = Args::new(&args)?.get(0, "autospace").is_none_or(|v| v.is_true());
    Ok(if with_space { out } else { out.trim_start().to_owned() })
}
