//! Methods of Python's str, dict and list, as chat templates call them. What is not here falls back
//! to minijinja-contrib's pycompat; it counts in bytes where Python counts characters and never
//! returns from `''.count('')`, so the common ones are written out.

use crate::budget;
use crate::scalars;
use crate::pybraces;
use crate::pyops;
use crate::pyseq::{dict_get, hashable, items_of, string_like, Lazy, Tuple};
use crate::pyvalue::{fail, type_name, Args};
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

pub fn unknown_method(
    state: &State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    budget::check()?;
    let parsed = Args::new(args)?;
    let found = match value.kind() {
        ValueKind::String => str_method(value, method, &parsed)?,
        ValueKind::Map => dict_method(value, method, &parsed)?,
        ValueKind::Seq | ValueKind::Iterable => list_method(value, method, &parsed)?,
        _ => None,
    };
    match found {
        Some(result) => Ok(if value.is_safe() { safe_parts(result) } else { result }),
        None if value.as_str().is_some() && method == "format" => {
            pybraces::format(value, args).map(|t| string_like(value, t))
        }
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
            .map_err(|e| match e.kind() {
                ErrorKind::UnknownMethod => {
                    fail(format!("'{}' object has no attribute '{method}'", type_name(value)))
                }
                _ => e,
            }),
    }
}

/// Methods of a dict win over its keys: a JSON schema often has a key called `items`.
pub fn dict_method(value: &Value, method: &str, args: &Args) -> Result<Option<Value>, Error> {
    match method {
        "items" | "keys" | "values" => Ok(Some(Lazy::view(value, method))),
        "get" => {
            let key = args.need(0, "key")?;
            hashable(&key)?;
            let found = dict_get(value, &key);
            let absent = || args.get(1, "default").unwrap_or(Value::from(()));
            Ok(Some(found.unwrap_or_else(absent)))
        }
        "copy" => Ok(Some(value.clone())),
        _ => Ok(None),
    }
}

fn list_method(value: &Value, method: &str, args: &Args) -> Result<Option<Value>, Error> {
    match method {
        "count" | "index" => {
            let what = args.need(0, "value")?;
            let mut count = 0i64;
            for (i, item) in value.try_iter()?.enumerate() {
                if pyops::equal(&item, &what, 0)? {
                    if method == "index" {
                        return Ok(Some(Value::from(i as i64)));
                    }
                    count += 1;
                }
            }
            if method == "index" {
                return Err(fail("value is not in list"));
            }
            Ok(Some(Value::from(count)))
        }
        "copy" if type_name(value) == "list" => Ok(Some(value.clone())),
        "append" | "extend" | "insert" | "pop" | "remove" | "sort" | "reverse" | "clear" => {
            let kind = type_name(value);
            Err(fail(format!("access to attribute '{method}' of '{kind}' object is unsafe.")))
        }
        _ => Ok(None),
    }
}

pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn text_arg(args: &Args, index: usize, name: &str) -> Result<Option<String>, Error> {
    match args.get(index, name) {
        None => Ok(None),
        Some(v) if v.is_none() => Ok(None),
        Some(v) => match v.as_str() {
            Some(s) => Ok(Some(s.to_owned())),
            None => Err(fail(format!("`{name}` must be str, not {}", type_name(&v)))),
        },
    }
}

fn need_text(args: &Args, index: usize, name: &str) -> Result<String, Error> {
    text_arg(args, index, name)?.ok_or_else(|| fail(format!("`{name}` must be str")))
}

/// What a method makes of a safe str is safe: a str, or a list or tuple of such.
fn safe_parts(result: Value) -> Value {
    if let Some(text) = result.as_str() {
        return Value::from_safe_string(text.to_owned());
    }
    let parts = |items: &mut dyn Iterator<Item = Value>| items.map(safe_parts).collect::<Vec<_>>();
    match (result.downcast_object_ref::<Tuple>(), result.kind()) {
        (Some(tuple), _) => Tuple::of(parts(&mut tuple.0.iter().cloned())),
        (None, ValueKind::Seq) => match result.try_iter() {
            Ok(mut items) => Value::from(parts(&mut items)),
            Err(_) => result,
        },
        _ => result,
    }
}

/// What a safe str takes in is escaped on the way.
fn taken_in(value: &Value, other: &Value, text: String) -> Result<String, Error> {
    if value.is_safe() && !other.is_safe() {
        return scalars::escaped(&text);
    }
    Ok(text)
}

fn str_method(value: &Value, method: &str, args: &Args) -> Result<Option<Value>, Error> {
    let s = value.as_str().unwrap_or("");
    let text = |t: String| Ok(Some(Value::from(t)));
    let yes = |b: bool| Ok(Some(Value::from(b)));
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let chars = text_arg(args, 0, "chars")?;
            let drop = |c: char| match &chars {
                Some(set) => set.contains(c),
                None => is_space(c),
            };
            let left = if method == "rstrip" { s } else { s.trim_start_matches(drop) };
            let both = if method == "lstrip" { left } else { left.trim_end_matches(drop) };
            text(both.to_owned())
        }
        "replace" => {
            let (old, new) = (need_text(args, 0, "old")?, need_text(args, 1, "new")?);
            let new = taken_in(value, &args.need(1, "new")?, new)?;
            let count = args.int(2, "count")?.unwrap_or(-1);
            text(replace(s, &old, &new, count)?)
        }
        "split" | "rsplit" => {
            let sep = text_arg(args, 0, "sep")?;
            let max = args.int(1, "maxsplit")?.unwrap_or(-1);
            split(s, sep.as_deref(), max, method == "rsplit").map(Some)
        }
        "splitlines" => Ok(Some(list_of(&split_lines(s, args.flag(0, "keepends"))))),
        "partition" | "rpartition" => {
            let sep = need_text(args, 0, "sep")?;
            let from_end = method == "rpartition";
            let cut = if from_end { s.rsplit_once(&sep) } else { s.split_once(&sep) };
            let parts = match cut {
                Some((a, b)) => [a, sep.as_str(), b],
                None if from_end => ["", "", s],
                None => [s, "", ""],
            };
            Ok(Some(Tuple::of(parts.iter().map(|p| Value::from(*p)).collect())))
        }
        "startswith" | "endswith" => {
            let test = args.need(0, "prefix")?;
            let at = |p: &str| if method == "startswith" { s.starts_with(p) } else { s.ends_with(p) };
            match test.as_str() {
                Some(p) => yes(at(p)),
                None if test.downcast_object_ref::<Tuple>().is_some() => {
                    yes(test.try_iter()?.any(|v| v.as_str().is_some_and(at)))
                }
                None => Err(fail(format!("{method} first arg must be str or a tuple of str"))),
            }
        }
        "find" | "rfind" | "index" | "rindex" => find(s, method, args).map(Some),
        "count" => {
            let what = need_text(args, 0, "sub")?;
            let n = if what.is_empty() { s.chars().count() + 1 } else { s.matches(&what).count() };
            Ok(Some(Value::from(n as i64)))
        }
        "removeprefix" => {
            let p = need_text(args, 0, "prefix")?;
            text(s.strip_prefix(p.as_str()).unwrap_or(s).to_owned())
        }
        "removesuffix" => {
            let p = need_text(args, 0, "suffix")?;
            text(s.strip_suffix(p.as_str()).unwrap_or(s).to_owned())
        }
        "join" => join(value, &args.need(0, "iterable")?).map(|t| Some(Value::from(t))),
        "expandtabs" => expand_tabs(s, args.int(0, "tabsize")?.unwrap_or(8)).map(|t| Some(Value::from(t))),
        "ljust" | "rjust" | "center" | "zfill" => pad(s, method, args).map(|t| Some(Value::from(t))),
        _ => case_method(s, method),
    }
}

fn expand_tabs(s: &str, size: i64) -> Result<String, Error> {
    let size = size.clamp(0, 10_000) as usize;
    budget::check_size(s.len().saturating_add(s.matches('\t').count().saturating_mul(size)))?;
    let mut out = String::with_capacity(s.len());
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' if size > 0 => {
                out.push_str(&" ".repeat(size - column % size));
                column += size - column % size;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(out)
}

fn case_method(s: &str, method: &str) -> Result<Option<Value>, Error> {
    let text = |t: String| Ok(Some(Value::from(t)));
    let all = |test: fn(char) -> bool| Ok(Some(Value::from(!s.is_empty() && s.chars().all(test))));
    let cased = |c: char| c.is_lowercase() || c.is_uppercase();
    match method {
        "upper" => text(s.to_uppercase()),
        "lower" | "casefold" => text(s.to_lowercase()),
        "capitalize" => {
            let mut chars = s.chars();
            let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
            text(first + &chars.as_str().to_lowercase())
        }
        "title" => {
            let mut out = String::with_capacity(s.len());
            let mut inside = false;
            for c in s.chars() {
                if inside {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
                inside = cased(c);
            }
            text(out)
        }
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            text(s.chars().map(swap).collect())
        }
        "istitle" => {
            let (mut found, mut inside, mut fits) = (false, false, true);
            for c in s.chars() {
                fits = fits && !(c.is_uppercase() && inside) && !(c.is_lowercase() && !inside);
                inside = cased(c);
                found = found || inside;
            }
            Ok(Some(Value::from(found && fits)))
        }
        "isidentifier" => {
            let letters = all(|c| c.is_alphanumeric() || c == '_');
            letters.map(|v| v.map(|v| Value::from(v.is_true() && !s.starts_with(char::is_numeric))))
        }
        "isspace" => all(is_space),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isascii" => Ok(Some(Value::from(s.is_ascii()))),
        "isupper" => Ok(Some(Value::from(s.chars().any(cased) && !s.chars().any(char::is_lowercase)))),
        "islower" => Ok(Some(Value::from(s.chars().any(cased) && !s.chars().any(char::is_uppercase)))),
        _ => Ok(None),
    }
}

pub fn replace(s: &str, old: &str, new: &str, count: i64) -> Result<String, Error> {
    let places = if old.is_empty() { s.chars().count() + 1 } else { s.matches(old).count() };
    let places = if count < 0 { places } else { places.min(count as usize) };
    budget::check_size(s.len().saturating_add(places.saturating_mul(new.len())))?;
    Ok(s.replacen(old, new, places))
}

fn split(s: &str, sep: Option<&str>, max: i64, from_end: bool) -> Result<Value, Error> {
    let limit = usize::try_from(max).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    match sep {
        Some("") => return Err(fail("empty separator")),
        Some(sep) if from_end => {
            parts.extend(s.rsplitn(limit.saturating_add(1), sep));
            parts.reverse();
        }
        Some(sep) => parts.extend(s.splitn(limit.saturating_add(1), sep)),
        None if from_end => {
            let mut rest = s.trim_end_matches(is_space);
            while !rest.is_empty() {
                match rest.char_indices().rev().find(|(_, c)| is_space(*c)) {
                    Some((at, c)) if parts.len() < limit => {
                        parts.push(&rest[at + c.len_utf8()..]);
                        rest = rest[..at].trim_end_matches(is_space);
                    }
                    _ => {
                        parts.push(rest);
                        rest = "";
                    }
                }
            }
            parts.reverse();
        }
        None => {
            let mut rest = s.trim_start_matches(is_space);
            while !rest.is_empty() {
                match rest.find(is_space) {
                    Some(at) if parts.len() < limit => {
                        parts.push(&rest[..at]);
                        rest = rest[at..].trim_start_matches(is_space);
                    }
                    _ => {
                        parts.push(rest);
                        rest = "";
                    }
                }
            }
        }
    }
    budget::check_size(parts.len() * 64)?;
    Ok(list_of(&parts))
}

fn list_of(parts: &[&str]) -> Value {
    Value::from(parts.iter().map(|p| Value::from(*p)).collect::<Vec<_>>())
}

pub fn split_lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}'
            | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let at = rest.find(ends).unwrap_or(rest.len());
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = if rest[at..].starts_with("\r\n") { 2 } else { end };
        lines.push(&rest[..if keep_ends { at + end } else { at }]);
        rest = &rest[at + end..];
    }
    lines
}

/// Positions count characters, and may be negative, as in Python.
fn find(s: &str, method: &str, args: &Args) -> Result<Value, Error> {
    let what = need_text(args, 0, "sub")?;
    let total = s.chars().count() as i64;
    let place = |v: Option<i64>, default: i64| match v {
        None => default,
        Some(i) if i < 0 => (i + total).max(0),
        Some(i) => i.min(total),
    };
    let start = place(args.int(1, "start")?, 0);
    let end = place(args.int(2, "end")?, total);
    let byte = |i: i64| s.char_indices().nth(i as usize).map_or(s.len(), |(at, _)| at);
    let window = if start <= end { Some(&s[byte(start)..byte(end)]) } else { None };
    let at = window.and_then(|w| {
        let at = if method.starts_with('r') { w.rfind(&what) } else { w.find(&what) };
        at.map(|at| start + w[..at].chars().count() as i64)
    });
    match at {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("index") => Err(fail("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn join(like: &Value, items: &Value) -> Result<String, Error> {
    let separator = like.as_str().unwrap_or("");
    let mut out = String::new();
    for (i, item) in items_of(items)?.into_iter().enumerate() {
        let Some(text) = item.as_str() else {
            let kind = type_name(&item);
            return Err(fail(format!("sequence item {i}: expected str instance, {kind} found")));
        };
        budget::check_size(out.len() + separator.len() + text.len())?;
        if i > 0 {
            out.push_str(separator);
        }
        out.push_str(&taken_in(like, &item, text.to_owned())?);
    }
    Ok(out)
}

pub fn pad(s: &str, method: &str, args: &Args) -> Result<String, Error> {
    let width = args.int(0, "width")?.unwrap_or(0).max(0) as usize;
    let fill = text_arg(args, 1, "fillchar")?.and_then(|f| f.chars().next()).unwrap_or(' ');
    let missing = width.saturating_sub(s.chars().count());
    budget::check_size(s.len().saturating_add(missing.saturating_mul(4)))?;
    let run = |n: usize, c: char| c.to_string().repeat(n);
    Ok(match method {
        "ljust" => s.to_owned() + &run(missing, fill),
        "rjust" => run(missing, fill) + s,
        "center" => {
            let left = missing / 2 + (missing & width & 1);
            run(left, fill) + s + &run(missing - left, fill)
        }
        _ => match s.strip_prefix(['+', '-']) {
            Some(digits) => s[..1].to_owned() + &run(missing, '0') + digits,
            None => run(missing, '0') + s,
        },
    })
}
