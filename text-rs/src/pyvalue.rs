//! Values written as Python writes them: `str()`, `repr()` and `json.dumps()`.

use crate::budget;
use crate::pyseq::{Lazy, Range, Tuple};
use minijinja::value::{Kwargs, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use std::sync::Arc;

/// `d.items` without a call: true, and a function.
#[derive(Debug)]
pub struct BoundMethod {
    pub value: Value,
    pub name: String,
}

impl BoundMethod {
    /// What a dict of Python has beside its keys.
    pub const NAMES: [&str; 11] = [
        "items", "keys", "values", "get", "copy", "clear", "fromkeys", "pop", "popitem",
        "setdefault", "update",
    ];

    pub fn of(value: Value, name: &str) -> Value {
        Value::from_object(BoundMethod { value, name: name.to_owned() })
    }
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &State, args: &[Value]) -> Result<Value, Error> {
        crate::pymethods::dict_method(&self.value, &self.name, &Args::new(args)?)?
            .ok_or_else(|| fail(format!("'{}' may not be called", self.name)))
    }
}

/// Positional and keyword arguments of a call, taken apart.
pub struct Args<'a> {
    pos: &'a [Value],
    kwargs: Option<Kwargs>,
}

impl<'a> Args<'a> {
    pub fn new(args: &'a [Value]) -> Result<Self, Error> {
        match args.split_last() {
            Some((last, rest)) if last.is_kwargs() => {
                Ok(Args { pos: rest, kwargs: Some(Kwargs::try_from(last.clone())?) })
            }
            _ => Ok(Args { pos: args, kwargs: None }),
        }
    }

    /// Argument `index`, or the keyword of that name.
    pub fn get(&self, index: usize, name: &str) -> Option<Value> {
        self.pos.get(index).cloned().or_else(|| self.named(name))
    }

    /// How many arguments came without a name.
    pub fn count(&self) -> usize {
        self.pos.len()
    }

    pub fn positional(&self) -> &[Value] {
        self.pos
    }

    pub fn keywords(&self) -> Vec<(Value, Value)> {
        let names = self.kwargs.iter().flat_map(|k| k.args());
        names.filter_map(|name| Some((Value::from(name), self.named(name)?))).collect()
    }

    pub fn named(&self, name: &str) -> Option<Value> {
        self.kwargs.as_ref()?.get::<Option<Value>>(name).ok()?
    }

    /// Fails where a keyword is none of `names`.
    pub fn only(&self, names: &[&str]) -> Result<(), Error> {
        match self.kwargs.iter().flat_map(|k| k.args()).find(|name| !names.contains(name)) {
            Some(name) => Err(fail(format!("Unexpected keyword argument '{name}'"))),
            None => Ok(()),
        }
    }

    pub fn need(&self, index: usize, name: &str) -> Result<Value, Error> {
        self.get(index, name).ok_or_else(|| fail(format!("missing argument `{name}`")))
    }

    pub fn flag(&self, index: usize, name: &str) -> bool {
        self.get(index, name).is_some_and(|v| v.is_true())
    }

    /// An integer argument; `None` where it is absent or none.
    pub fn int(&self, index: usize, name: &str) -> Result<Option<i64>, Error> {
        match self.get(index, name) {
            Some(v) if v.is_none() => Ok(None),
            Some(v) => v.as_i64().map(Some).ok_or_else(|| fail(format!("`{name}` must be an int"))),
            None => Ok(None),
        }
    }
}

pub fn fail(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The name that Python gives the type of `value`.
pub fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Map => "dict",
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => "tuple",
        ValueKind::Seq if value.downcast_object_ref::<Range>().is_some() => "range",
        ValueKind::Seq => "list",
        ValueKind::Iterable => value.downcast_object_ref::<Lazy>().map_or("list", |lazy| lazy.kind),
        _ => "object",
    }
}

fn put(out: &mut String, text: &str) -> Result<(), Error> {
    budget::check_size(out.len() + text.len())?;
    out.push_str(text);
    Ok(())
}

pub fn str_of(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_str(&mut out, value)?;
    Ok(out)
}

pub fn repr_of(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

/// `str(value)`; an undefined value is the empty text.
pub fn write_str(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(s) => put(out, s),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value, 0),
    }
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > 200 {
        return Err(fail("value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Undefined => put(out, "Undefined"),
        ValueKind::None => put(out, "None"),
        ValueKind::Bool => put(out, if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => put(out, &number(value, false)),
        ValueKind::String if value.is_safe() => {
            put(out, &format!("Markup({})", quoted(value.as_str().unwrap_or(""))))
        }
        ValueKind::String => put(out, &quoted(value.as_str().unwrap_or(""))),
        ValueKind::Iterable if value.downcast_object_ref::<Lazy>().is_some_and(|l| !l.is_view()) => {
            put(out, "<generator object>")
        }
        ValueKind::Seq | ValueKind::Iterable => {
            if let Some(range) = value.downcast_object_ref::<Range>() {
                return put(out, &range.repr());
            }
            let view = value.downcast_object_ref::<Lazy>();
            if let Some(view) = view {
                put(out, view.kind)?;
                put(out, "(")?;
            }
            let tuple = value.downcast_object_ref::<Tuple>();
            put(out, if tuple.is_some() { "(" } else { "[" })?;
            for (i, item) in value.try_iter()?.enumerate() {
                put(out, if i == 0 { "" } else { ", " })?;
                write_repr(out, &item, depth + 1)?;
            }
            match tuple {
                Some(t) if t.0.len() == 1 => put(out, ",)"),
                Some(_) => put(out, ")"),
                None if view.is_some() => put(out, "])"),
                None => put(out, "]"),
            }
        }
        ValueKind::Map => {
            put(out, "{")?;
            for (i, (key, item)) in pairs(value).into_iter().enumerate() {
                put(out, if i == 0 { "" } else { ", " })?;
                write_repr(out, &key, depth + 1)?;
                put(out, ": ")?;
                write_repr(out, &item, depth + 1)?;
            }
            put(out, "}")
        }
        _ => put(out, &value.to_string()),
    }
}

pub fn pairs(map: &Value) -> Vec<(Value, Value)> {
    match map.as_object().and_then(|o| o.try_iter_pairs()) {
        Some(iter) => iter.collect(),
        None => Vec::new(),
    }
}

fn number(value: &Value, json: bool) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    float(f64::try_from(value.clone()).unwrap_or(f64::NAN), json)
}

/// The shortest digits that read back as `x`, laid out as Python's `repr` does.
pub fn float(x: f64, json: bool) -> String {
    if x.is_nan() {
        return if json { "NaN" } else { "nan" }.into();
    }
    if x.is_infinite() {
        let sign = if x < 0.0 { "-" } else { "" };
        return format!("{sign}{}", if json { "Infinity" } else { "inf" });
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

/// Python's `repr` of a str.
fn quoted(s: &str) -> String {
    use std::fmt::Write;
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(s.len() + 2);
    out.push(quote);
    for c in s.chars() {
        let code = c as u32;
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if c == quote => {
                out.push('\\');
                out.push(c);
            }
            _ if is_printable(c) => out.push(c),
            _ if code < 0x100 => write!(out, "\\x{code:02x}").unwrap_or(()),
            _ if code < 0x10000 => write!(out, "\\u{code:04x}").unwrap_or(()),
            _ => write!(out, "\\U{code:08x}").unwrap_or(()),
        }
    }
    out.push(quote);
    out
}

fn is_printable(c: char) -> bool {
    if c == ' ' {
        return true;
    }
    let format = matches!(c as u32, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e
        | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb
        | 0xe000..=0xf8ff | 0xe0001..=0xe007f | 0xf0000..=0x10ffff);
    !(c.is_control() || c.is_whitespace() || format)
}

/// How `json.dumps` lays out its text.
pub struct JsonStyle {
    pub ensure_ascii: bool,
    /// What one level of indentation is; none for one line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

pub fn json_of(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, style, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    if depth > 200 {
        return Err(fail("value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => put(out, "null"),
        ValueKind::Bool => put(out, if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => put(out, &number(value, true)),
        ValueKind::String => put(out, &json_string(value.as_str().unwrap_or(""), style)),
        ValueKind::Seq if value.downcast_object_ref::<Range>().is_none() => {
            let mut items = value.try_iter()?.peekable();
            if items.peek().is_none() {
                return put(out, "[]");
            }
            put(out, "[")?;
            for (i, item) in items.enumerate() {
                put(out, if i == 0 { "" } else { &style.item_separator })?;
                new_line(out, style, depth + 1)?;
                write_json(out, &item, style, depth + 1)?;
            }
            new_line(out, style, depth)?;
            put(out, "]")
        }
        ValueKind::Map => write_json_map(out, value, style, depth),
        _ => Err(fail(format!("Object of type {} is not JSON serializable", type_name(value)))),
    }
}

fn write_json_map(
    out: &mut String,
    value: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    let mut items = pairs(value);
    if items.is_empty() {
        return put(out, "{}");
    }
    if style.sort_keys {
        items.sort_by(|a, b| a.0.cmp(&b.0));
    }
    put(out, "{")?;
    for (i, (key, item)) in items.iter().enumerate() {
        put(out, if i == 0 { "" } else { &style.item_separator })?;
        new_line(out, style, depth + 1)?;
        let name = match key.kind() {
            ValueKind::String => key.as_str().unwrap_or("").to_owned(),
            ValueKind::None => "null".into(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
            ValueKind::Number => number(key, true),
            _ => return Err(fail("keys must be str, int, float, bool or None")),
        };
        put(out, &json_string(&name, style))?;
        put(out, &style.key_separator)?;
        write_json(out, item, style, depth + 1)?;
    }
    new_line(out, style, depth)?;
    put(out, "}")
}

fn new_line(out: &mut String, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    if let Some(indent) = &style.indent {
        budget::check_size(out.len() + 1 + indent.len() * depth)?;
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
    Ok(())
}

fn json_string(s: &str, style: &JsonStyle) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(s.len() + 2);
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => write!(out, "\\u{:04x}", c as u32).unwrap_or(()),
            c if style.ensure_ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").unwrap_or(());
                }
            }
            // ASCII mode also escapes DEL.
            '\u{7f}' if style.ensure_ascii => out.push_str("\\u007f"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
