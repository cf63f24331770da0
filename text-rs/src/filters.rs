//! Filters, tests and functions of Jinja2 that minijinja lacks, writes differently or doesn't bound.

use crate::budget;
use crate::pyformat;
use crate::pymethods;
use crate::pyops;
use crate::pyseq::{index_of, is_dict, item, items_of, slice, string_like, Range, Seen, Tuple};
use crate::pytests;
use crate::pyvalue::{fail, json_of, pairs, str_of, type_name, Args, BoundMethod, JsonStyle};
use crate::rewrite;
use crate::scalars::{
    escape, filesizeformat, float, indent, int, round, title, truncate, urlencode, xmlattr,
};
use crate::sequences;
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};
use std::cell::RefCell;

thread_local! {
    /// What the template passed to raise_exception.
    static RAISED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Filters that Jinja2 does not have, or that would not answer as it does.
const MINIJINJA_ONLY: [&str; 6] = ["bool", "chain", "lines", "pprint", "split", "zip"];

pub fn take_raised() -> Option<String> {
    RAISED.with(|r| r.borrow_mut().take())
}

pub fn install(env: &mut Environment, now_s: i64) {
    install_operations(env);
    install_functions(env, now_s);
    install_filters(env);
    sequences::install(env);
    pytests::install(env);
}

fn install_operations(env: &mut Environment) {
    env.add_function(rewrite::OP, |operands: Rest<Value>| pyops::apply_all(&operands));
    env.add_function(rewrite::NEG, |value: Value| pyops::neg(&value));
    env.add_function(rewrite::SHAPE, |value: Value| budget::check_shape(&value).map(|_| value));
    env.add_function(rewrite::TUPLE, |list: Value| {
        budget::check_shape(&list)?;
        Ok::<_, Error>(Tuple::of(list.try_iter()?.collect()))
    });
    env.add_function(rewrite::DICT, |list: Value| dict_of(list.try_iter()?.collect()));
    env.add_function(rewrite::DONE, |value: Value| budget::check().map(|_| value));
    env.add_function(rewrite::ITERABLE, |value: Value| match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            Err(fail(format!("'{}' object is not iterable", type_name(&value))))
        }
        _ => Ok(value),
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
    env.add_function(rewrite::ITEM, |value: Value, key: Value| item(&value, &key));
    env.add_function(rewrite::SLICE, |value: Value, start: Value, stop: Value, step: Value| {
        slice(&value, &[start, stop, step])
    });
}

/// A dict of keys and values in turn. Keys that Python finds equal are one key, with the first's
/// spelling and the last's value.
fn dict_of(list: Vec<Value>) -> Result<Value, Error> {
    let mut items: Vec<(Value, Value)> = Vec::new();
    let mut seen = Seen::default();
    for pair in list.chunks_exact(2) {
        match seen.place(&pair[0])? {
            Some(place) => items[place].1 = pair[1].clone(),
            None => items.push((pair[0].clone(), pair[1].clone())),
        }
    }
    let dict: Value = items.into_iter().collect();
    budget::check_shape(&dict)?;
    Ok(dict)
}

fn install_functions(env: &mut Environment, now_s: i64) {
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let text = str_of(&message)?;
        RAISED.with(|r| *r.borrow_mut() = Some(text.clone()));
        Err(fail(text))
    });
    env.remove_global("debug");
    env.add_function("range", |args: Rest<Value>| {
        let mut numbers = Vec::new();
        for arg in args.iter() {
            let kind = type_name(arg);
            numbers.push(index_of(arg).ok_or_else(|| {
                fail(format!("'{kind}' object cannot be interpreted as an integer"))
            })?);
        }
        match numbers[..] {
            [stop] => Range::of(0, stop, 1),
            [start, stop] => Range::of(start, stop, 1),
            [start, stop, step] => Range::of(start, stop, step),
            _ => Err(fail("range expected 1 to 3 arguments")),
        }
    });
    env.add_function("dict", |args: Rest<Value>| {
        let args = Args::new(&args)?;
        let mut all: Vec<Value> = Vec::new();
        match args.get(0, "") {
            None => {}
            Some(map) if is_dict(&map) => all.extend(pairs(&map).into_iter().flat_map(|(k, v)| [k, v])),
            Some(list) => {
                for pair in items_of(&list)? {
                    let pair = items_of(&pair)?;
                    if pair.len() != 2 {
                        return Err(fail("dictionary update sequence element has no length of 2"));
                    }
                    all.extend(pair);
                }
            }
        }
        all.extend(args.keywords().into_iter().flat_map(|(k, v)| [k, v]));
        dict_of(all)
    });
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.to_vec()));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_function("strftime_now", move |format: Value| {
        let format = format.as_str().ok_or_else(|| fail("strftime_now takes a str"))?;
        crate::clock::strftime(now_s, format).map(Value::from).map_err(fail)
    });
}

fn install_filters(env: &mut Environment) {
    env.add_filter("tojson", tojson);
    env.add_filter("string", |v: Value| if v.as_str().is_some() { Ok(v) } else { str_of(&v).map(Value::from) });
    env.add_filter("replace", replace);
    env.add_filter("trim", trim);
    env.add_filter("indent", indent);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("safe", |v: Value| str_of(&v).map(Value::from_safe_string));
    env.add_filter("forceescape", |v: Value| escape(Value::from(str_of(&v)?)));
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("round", round);
    env.add_filter("wordcount", |v: Value| {
        str_of(&v).map(|s| {
            s.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).count()
        })
    });
    env.add_filter("format", |format: Value, args: Rest<Value>| {
        let args = Args::new(&args)?;
        let named = args.keywords();
        let values = match (args.count(), named.is_empty()) {
            (0, false) => named.into_iter().collect(),
            (_, true) => Tuple::of(args.positional().to_vec()),
            _ => return Err(fail("can't handle positional and keyword arguments at the same time")),
        };
        pyformat::percent(&format, &str_of(&format)?, &values)
    });
    env.add_filter("center", |v: Value, args: Rest<Value>| {
        let width = Args::new(&args)?.int(0, "width")?.unwrap_or(80);
        let text = str_of(&v)?;
        let centered = pymethods::pad(&text, "center", &Args::new(&[Value::from(width)])?)?;
        Ok::<_, Error>(string_like(&v, centered))
    });
    env.add_filter("abs", |v: Value| match pyops::less(&v, &Value::from(0)) {
        Ok(true) => pyops::neg(&v),
        Ok(false) => pyops::add(&v, &Value::from(0)),
        Err(_) => Err(fail(format!("bad operand type for abs(): '{}'", type_name(&v)))),
    });
    env.add_filter("attr", |v: Value, name: Value| match name.as_str() {
        Some(name) if is_dict(&v) && !BoundMethod::NAMES.contains(&name) => Ok(Value::UNDEFINED),
        Some(name) if is_dict(&v) => Ok(BoundMethod::of(v, name)),
        Some(name) => v.get_attr(name),
        None => Err(fail("attribute name must be string")),
    });
    for name in ["upper", "lower", "capitalize"] {
        env.add_filter(name, move |state: &State, v: Value| {
            let text = string_like(&v, str_of(&v)?);
            pymethods::unknown_method(state, &text, name, &[])
        });
    }
    env.add_filter("title", title);
    env.add_filter("truncate", truncate);
    env.add_filter("filesizeformat", filesizeformat);
    env.add_filter("urlencode", urlencode);
    env.add_filter("xmlattr", xmlattr);
    env.add_filter("striptags", |v: Value| {
        let text = str_of(&v)?;
        budget::check_size(text.len().saturating_mul(2))?;
        Ok::<_, Error>(minijinja_contrib::filters::striptags(text))
    });
    for name in MINIJINJA_ONLY {
        env.remove_filter(name);
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

fn replace(value: Value, args: Rest<Value>) -> Result<String, Error> {
    let args = Args::new(&args)?;
    let (old, new) = (str_of(&args.need(0, "old")?)?, str_of(&args.need(1, "new")?)?);
    let count = args.int(2, "count")?.unwrap_or(-1);
    pymethods::replace(&str_of(&value)?, &old, &new, count)
}

fn trim(state: &State, value: Value, args: Rest<Value>) -> Result<Value, Error> {
    pymethods::unknown_method(state, &string_like(&value, str_of(&value)?), "strip", &args)
}

fn default(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let other = args.get(0, "default_value").unwrap_or_else(|| Value::from(""));
    let replace_false = args.flag(1, "boolean");
    Ok(if value.is_undefined() || (replace_false && !value.is_true()) { other } else { value })
}
