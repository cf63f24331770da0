//! Methods of Python's str, dict and list, as chat templates call them. What is not here falls back
//! to minijinja-contrib's pycompat; it counts in bytes where Python counts characters and never
//! returns from `''.count('')`, so the common ones are written out.

use crate::budget;
use crate::pyops;
use crate::pyvalue::{fail, pairs, str_of, type_name, Args, Tuple};
use minijinja::value::ValueKind;
use minijinja::{format_filter, Error, ErrorKind, FormatStyle, State, Value};

pub fn unknown_method(
    state: &State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    budget::check()?;
    let parsed = Args::new(args)?;
    let found = match value.kind() {
        ValueKind::String => str_method(value.as_str().unwrap_or(""), method, &parsed)?,
        ValueKind::Map => dict_method(value, method, &parsed)?,
        ValueKind::Seq | ValueKind::Iterable => list_method(value, method, &parsed)?,
        _ => None,
    };
    match found {
        Some(result) => Ok(result),
        None if value.as_str().is_some() && method == "format" => {
            str_format(value.as_str().unwrap_or(""), args).map(Value::from)
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
    let list = |items: Vec<Value>| Ok(Some(Value::from(items)));
    match method {
        "items" => {
            list(pairs(value).into_iter().map(|(k, v)| Tuple::of(vec![k, v])).collect())
        }
        "keys" => list(pairs(value).into_iter().map(|(k, _)| k).collect()),
        "values" => list(pairs(value).into_iter().map(|(_, v)| v).collect()),
        "get" => {
            let key = args.need(0, "key")?;
            let found = value.as_object().and_then(|o| o.get_value(&key));
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
        "copy" => Ok(Some(value.clone())),
        "append" | "extend" | "insert" | "pop" | "remove" | "sort" | "reverse" | "clear" => {
            Err(fail(format!("access to attribute '{method}' of 'list' object is unsafe.")))
        }
        _ => Ok(None),
    }
}

fn is_space(c: char) -> bool {
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

fn str_method(s: &str, method: &str, args: &Args) -> Result<Option<Value>, Error> {
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
                None if test.kind() == ValueKind::Seq => {
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
        "join" => join(s, &args.need(0, "iterable")?).map(|t| Some(Value::from(t))),
        "ljust" | "rjust" | "center" | "zfill" => pad(s, method, args).map(|t| Some(Value::from(t))),
        _ => case_method(s, method),
    }
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

fn join(separator: &str, items: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        let Some(text) = item.as_str() else {
            let kind = type_name(&item);
            return Err(fail(format!("sequence item {i}: expected str instance, {kind} found")));
        };
        budget::check_size(out.len() + separator.len() + text.len())?;
        if i > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(out)
}

fn pad(s: &str, method: &str, args: &Args) -> Result<String, Error> {
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

/// Arguments of a format in the form that Python would write them.
fn format_args(args: &[Value]) -> Result<Vec<Value>, Error> {
    args.iter()
        .map(|v| match v.kind() {
            ValueKind::Number | ValueKind::String => Ok(v.clone()),
            _ if v.is_kwargs() => Ok(v.clone()),
            _ => str_of(v).map(Value::from),
        })
        .collect()
}

fn check_format(format: &str, args: &[Value]) -> Result<(), Error> {
    let mut run = 0;
    for c in format.chars() {
        run = if c.is_ascii_digit() { run + 1 } else { 0 };
        if run > 4 {
            return Err(fail("a format's width is limited to 4 digits"));
        }
    }
    let longest = args.iter().filter_map(|a| a.as_str()).map(str::len).max().unwrap_or(0);
    let holes = format.matches(['%', '{']).count();
    budget::check_size(holes.saturating_mul(longest + 10_000).saturating_add(format.len()))
}

pub fn percent_format(format: &str, args: &[Value]) -> Result<String, Error> {
    check_format(format, args)?;
    format_filter(FormatStyle::Printf, format, &format_args(args)?)
}

fn str_format(format: &str, args: &[Value]) -> Result<String, Error> {
    check_format(format, args)?;
    format_filter(FormatStyle::StrFormat, format, &format_args(args)?)
}
