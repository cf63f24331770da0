//! Filters, tests and functions of Jinja2 that minijinja lacks, writes differently or doesn't bound.

use crate::budget;
use crate::pymethods;
use crate::pyops;
use crate::pyvalue::{fail, json_of, pairs, str_of, Args, BoundMethod, JsonStyle, Tuple};
use crate::rewrite;
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};
use std::cell::RefCell;

thread_local! {
    /// What the template passed to raise_exception.
    static RAISED: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub fn take_raised() -> Option<String> {
    RAISED.with(|r| r.borrow_mut().take())
}

pub fn install(env: &mut Environment, now_s: i64) {
    install_operations(env);
    install_functions(env, now_s);
    install_tests(env);
    install_filters(env);
}

fn install_operations(env: &mut Environment) {
    env.add_function(rewrite::OP, |operands: Rest<Value>| pyops::apply_all(&operands));
    env.add_function(rewrite::SHAPE, |value: Value| budget::check_shape(&value).map(|_| value));
    env.add_function(rewrite::DONE, |value: Value| budget::check().map(|_| value));
    env.add_function(rewrite::ITERABLE, |value: Value| match value.is_none() {
        true => Err(fail("'NoneType' object is not iterable")),
        false => Ok(value),
    });
    env.add_function(rewrite::METHOD, |state: &State, all: Rest<Value>| {
        budget::check()?;
        let [value, name, args @ ..] = &all[..] else { return Err(fail("missing operand")) };
        let name = name.as_str().unwrap_or("");
        if value.is_undefined() {
            return Err(fail(format!("a value is undefined; it has no '{name}'")));
        }
        if is_dict(value) {
            if let Some(found) = pymethods::dict_method(value, name, &Args::new(args)?)? {
                return Ok(found);
            }
        }
        value.call_method(state, name, args)
    });
    env.add_function(rewrite::ATTRIBUTE, |value: Value, name: &str| {
        if is_dict(&value) {
            return Ok(BoundMethod::of(value, name));
        }
        value.get_attr(name)
    });
    env.add_function(rewrite::ITEM, |value: Value, name: &str| {
        let found = value.get_item(&Value::from(name))?;
        if found.is_undefined() && is_dict(&value) {
            return Ok(BoundMethod::of(value, name));
        }
        Ok::<_, Error>(found)
    });
}

/// Whether Python would see a dict: minijinja's namespaces and loops are maps too.
fn is_dict(value: &Value) -> bool {
    let special = |name: &str| name.contains("Namespace") || name.contains("Loop");
    value.kind() == ValueKind::Map && !value.as_object().is_some_and(|o| special(o.type_name()))
}

fn install_functions(env: &mut Environment, now_s: i64) {
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let text = str_of(&message)?;
        RAISED.with(|r| *r.borrow_mut() = Some(text.clone()));
        Err(fail(text))
    });
    env.add_function("strftime_now", move |format: Value| {
        let format = format.as_str().ok_or_else(|| fail("strftime_now takes a str"))?;
        crate::clock::strftime(now_s, format).map(Value::from).map_err(fail)
    });
}

fn install_tests(env: &mut Environment) {
    // A str has a length and items, so Jinja2 calls it a sequence.
    env.add_test("sequence", |v: Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("iterable", |v: Value| {
        matches!(
            v.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Iterable
        ) || v.is_undefined()
    });
    env.add_test("callable", |v: Value| v.kind() == ValueKind::Plain);
    env.add_test("number", |v: Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
    let equal = |a: Value, b: Value| pyops::equal(&a, &b, 0);
    let differ = |a: Value, b: Value| pyops::equal(&a, &b, 0).map(|same| !same);
    for name in ["eq", "equalto", "=="] {
        env.add_test(name, equal);
    }
    for name in ["ne", "!="] {
        env.add_test(name, differ);
    }
    env.add_test("in", |item: Value, list: Value| pyops::contains(&list, &item));
}

fn install_filters(env: &mut Environment) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |v: Value| str_of(&v));
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("join", join);
    env.add_filter("replace", replace);
    env.add_filter("trim", trim);
    env.add_filter("indent", indent);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("list", list);
    env.add_filter("items", |v: Value| match v.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => Ok(pair_list(&v)),
        _ => Err(fail("Can only get item pairs from a mapping.")),
    });
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    env.add_filter("int", int);
    env.add_filter("float", |v: Value, default: Option<f64>| {
        float_of(&v).unwrap_or(default.unwrap_or(0.0))
    });
    env.add_filter("round", round);
    env.add_filter("wordcount", |v: Value| {
        str_of(&v).map(|s| {
            s.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).count()
        })
    });
    env.add_filter("format", |format: Value, args: Rest<Value>| {
        pymethods::percent_format(format.as_str().unwrap_or(""), &args)
    });
    env.add_filter("center", |v: Value, args: Rest<Value>| {
        let width = args.first().and_then(Value::as_i64).unwrap_or(80);
        budget::check_size(usize::try_from(width).unwrap_or(0))?;
        let text = str_of(&v)?;
        let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
        Ok::<_, Error>(format!("{}{text}{}", " ".repeat(missing / 2), " ".repeat(missing.div_ceil(2))))
    });
    for name in ["batch", "slice"] {
        env.add_filter(name, move |v: Value, count: Value, fill: Option<Value>| {
            chunks(name == "batch", v, count, fill)
        });
    }
}

/// `json.dumps` with transformers' defaults: no HTML escapes, no ASCII escapes.
fn tojson(value: Value, args: Rest<Value>) -> Result<String, Error> {
    budget::check()?;
    let args = Args::new(&args)?;
    let indent = match args.get(1, "indent") {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = v.as_i64().ok_or_else(|| fail("indent must be an int"))?;
                " ".repeat(width.clamp(0, 1000) as usize)
            }
        }),
    };
    let mut style = JsonStyle {
        ensure_ascii: args.flag(0, "ensure_ascii"),
        item_separator: if indent.is_some() { "," } else { ", " }.into(),
        key_separator: ": ".into(),
        indent,
        sort_keys: args.flag(3, "sort_keys"),
    };
    if let Some(separators) = args.get(2, "separators").filter(|v| !v.is_none()) {
        let parts: Vec<Value> = separators.try_iter()?.collect();
        let [item, key] = &parts[..] else { return Err(fail("separators must be a pair")) };
        style.item_separator = str_of(item)?;
        style.key_separator = str_of(key)?;
    }
    json_of(&value, &style)
}

fn length(value: Value) -> Result<usize, Error> {
    match value.len() {
        Some(n) => Ok(n),
        None if value.is_undefined() => Ok(0),
        None if value.kind() == ValueKind::Iterable => Ok(value.try_iter()?.count()),
        None => {
            let kind = crate::pyvalue::type_name(&value);
            Err(fail(format!("object of type '{kind}' has no len()")))
        }
    }
}

fn join(value: Value, args: Rest<Value>) -> Result<String, Error> {
    let args = Args::new(&args)?;
    let separator = args.get(0, "d").map(|v| str_of(&v)).transpose()?.unwrap_or_default();
    let attribute = args.get(1, "attribute").filter(|v| !v.is_none());
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(out);
    }
    for (i, item) in value.try_iter()?.enumerate() {
        let item = match &attribute {
            Some(name) => item.get_item(name)?,
            None => item,
        };
        if i > 0 {
            budget::check_size(out.len() + separator.len())?;
            out.push_str(&separator);
        }
        crate::pyvalue::write_str(&mut out, &item)?;
    }
    Ok(out)
}

fn replace(value: Value, args: Rest<Value>) -> Result<String, Error> {
    let args = Args::new(&args)?;
    let (old, new) = (str_of(&args.need(0, "old")?)?, str_of(&args.need(1, "new")?)?);
    let count = args.int(2, "count")?.unwrap_or(-1);
    pymethods::replace(&str_of(&value)?, &old, &new, count)
}

fn trim(state: &State, value: Value, args: Rest<Value>) -> Result<Value, Error> {
    pymethods::unknown_method(state, &Value::from(str_of(&value)?), "strip", &args)
}

fn indent(value: Value, args: Rest<Value>) -> Result<String, Error> {
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
    Ok(out)
}

/// What markupsafe writes.
fn escape(value: Value) -> Result<Value, Error> {
    let text = str_of(&value)?;
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
    Ok(Value::from(out))
}

fn default(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let other = args.get(0, "default_value").unwrap_or_else(|| Value::from(""));
    let replace_false = args.flag(1, "boolean");
    Ok(if value.is_undefined() || (replace_false && !value.is_true()) { other } else { value })
}

fn float_of(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim().replace('_', "").parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    }
}

/// `int(value)` of Python, with Jinja2's default for what is no number.
fn int(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let default = args.get(0, "default").unwrap_or(Value::from(0));
    let base = args.int(1, "base")?.unwrap_or(10).clamp(2, 36) as u32;
    if value.is_integer() {
        return Ok(value);
    }
    if let Some(text) = value.as_str() {
        let digits = text.trim().replace('_', "");
        let digits = match base {
            16 => digits.trim_start_matches("0x").to_owned(),
            8 => digits.trim_start_matches("0o").to_owned(),
            2 => digits.trim_start_matches("0b").to_owned(),
            _ => digits,
        };
        if let Ok(number) = i64::from_str_radix(&digits, base) {
            return Ok(Value::from(number));
        }
    }
    Ok(match float_of(&value) {
        Some(x) if x.is_finite() => Value::from(x.trunc() as i64),
        _ => default,
    })
}

fn round(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let places = args.int(0, "precision")?.unwrap_or(0).clamp(0, 30);
    let method = args.get(1, "method").map(|m| str_of(&m)).transpose()?;
    let x = float_of(&value).filter(|_| !value.is_undefined()).ok_or_else(|| fail("no number"))?;
    let scale = 10f64.powi(places as i32);
    Ok(Value::from(match method.as_deref() {
        Some("ceil") => (x * scale).ceil() / scale,
        Some("floor") => (x * scale).floor() / scale,
        _ if value.is_integer() => return Ok(value),
        // The shortest text of so many places, ties to even, is what Python rounds to.
        _ => format!("{x:.0$}", places as usize).parse().unwrap_or(x),
    }))
}

fn list(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        budget::check_size(text.len().saturating_mul(32))?;
        return Ok(text.chars().map(|c| Value::from(c.to_string())).collect());
    }
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if value.is_none() {
        return Err(fail("'NoneType' object is not iterable"));
    }
    Ok(Value::from(value.try_iter()?.collect::<Vec<_>>()))
}

fn pair_list(map: &Value) -> Value {
    Value::from(pairs(map).into_iter().map(|(k, v)| Tuple::of(vec![k, v])).collect::<Vec<_>>())
}

/// `batch` gives lists of `count` items, `slice` gives `count` lists; `fill` evens out the last ones.
fn chunks(batch: bool, value: Value, count: Value, fill: Option<Value>) -> Result<Value, Error> {
    let items: Vec<Value> = value.try_iter()?.collect();
    let count = count.as_usize().filter(|n| (1..=1 << 16).contains(n));
    let count = count.ok_or_else(|| fail("the number of items must be between 1 and 65536"))?;
    let mut out: Vec<Vec<Value>> = Vec::new();
    if batch {
        for part in items.chunks(count) {
            let mut part = part.to_vec();
            if let Some(fill) = &fill {
                part.resize(count, fill.clone());
            }
            out.push(part);
        }
    } else {
        let (each, extra) = (items.len() / count, items.len() % count);
        let mut at = 0;
        for i in 0..count {
            let size = each + usize::from(i < extra);
            let mut part = items[at..at + size].to_vec();
            at += size;
            if let (Some(fill), true) = (&fill, i >= extra && extra > 0) {
                part.push(fill.clone());
            }
            out.push(part);
        }
    }
    Ok(Value::from(out.into_iter().map(Value::from).collect::<Vec<_>>()))
}
