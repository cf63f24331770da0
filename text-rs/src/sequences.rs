//! Jinja2's filters of sequences and dicts: minijinja's own differ in what they take, in how they
//! order, and in that Python's answer with generators.

use crate::budget;
use crate::pyops;
use crate::pyseq::{is_dict, item, items_of, slice, Lazy, Seen, Tuple};
use crate::pyvalue::{fail, pairs, str_of, type_name, write_str, Args};
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

pub fn install(env: &mut Environment) {
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("first", |v: Value| {
        items_of(&v).map(|i| i.into_iter().next().unwrap_or_default())
    });
    env.add_filter("last", |v: Value| {
        not_a_generator(&v, "reversible")?;
        items_of(&v).map(|i| i.into_iter().last().unwrap_or_default())
    });
    env.add_filter("list", |v: Value| items_of(&v).map(Value::from));
    env.add_filter("reverse", reverse);
    env.add_filter("join", join);
    env.add_filter("sum", sum);
    env.add_filter("min", |v: Value, args: Rest<Value>| extreme(v, &args, false));
    env.add_filter("max", |v: Value, args: Rest<Value>| extreme(v, &args, true));
    env.add_filter("sort", sort);
    env.add_filter("unique", unique);
    env.add_filter("dictsort", dictsort);
    env.add_filter("groupby", groupby);
    env.add_filter("items", |v: Value| match v.kind() {
        ValueKind::Undefined => Ok(Lazy::generator(Vec::new())),
        ValueKind::Map => items_of(&Lazy::view(&v, "items")).map(Lazy::generator),
        _ => Err(fail("Can only get item pairs from a mapping.")),
    });
    env.add_filter("map", map);
    for (name, of_attribute, keep) in [
        ("select", false, true),
        ("reject", false, false),
        ("selectattr", true, true),
        ("rejectattr", true, false),
    ] {
        env.add_filter(name, move |state: &State, v: Value, args: Rest<Value>| {
            filtered(state, &v, &args, of_attribute, keep)
        });
    }
    env.add_filter("batch", batch);
    env.add_filter("slice", columns);
}

fn not_a_generator(value: &Value, what: &str) -> Result<(), Error> {
    match value.downcast_object_ref::<Lazy>() {
        Some(lazy) if !lazy.is_view() => Err(fail(format!("'generator' object is not {what}"))),
        _ => Ok(()),
    }
}

pub fn length(value: Value) -> Result<usize, Error> {
    match value.len() {
        Some(n) => Ok(n),
        None if value.is_undefined() => Ok(0),
        None => Err(fail(format!("object of type '{}' has no len()", type_name(&value)))),
    }
}

fn reverse(value: Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return slice(&value, &[Value::from(()), Value::from(()), Value::from(-1)]);
    }
    let mut items = items_of(&value)?;
    items.reverse();
    Ok(match not_a_generator(&value, "") {
        Ok(()) => Lazy::generator(items),
        Err(_) => Value::from(items),
    })
}

fn join(value: Value, args: Rest<Value>) -> Result<String, Error> {
    let args = Args::new(&args)?;
    let separator = args.get(0, "d").map(|v| str_of(&v)).transpose()?.unwrap_or_default();
    let getter = Getter::of(args.get(1, "attribute"), None)?;
    let mut out = String::new();
    for (i, item) in items_of(&value)?.into_iter().enumerate() {
        if i > 0 {
            budget::check_size(out.len() + separator.len())?;
            out.push_str(&separator);
        }
        write_str(&mut out, &getter.get(item)?)?;
    }
    Ok(out)
}

/// What map and select go through: nothing where the value is false, whatever it is.
fn taken(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() {
        items_of(value)
    } else {
        Ok(Vec::new())
    }
}

/// What `attribute=` names: a path such as `function.name` or `0.key`, or an index.
struct Getter {
    parts: Vec<Value>,
    default: Option<Value>,
}

impl Getter {
    fn of(attribute: Option<Value>, default: Option<Value>) -> Result<Getter, Error> {
        let part = |text: &str| match text.parse::<u64>() {
            Ok(number) if text.bytes().all(|b| b.is_ascii_digit()) => Value::from(number),
            _ => Value::from(text),
        };
        let parts = match attribute {
            None => Vec::new(),
            Some(path) if path.is_none() => Vec::new(),
            Some(path) => match path.as_str() {
                Some(text) => text.split('.').map(part).collect(),
                None => vec![path],
            },
        };
        Ok(Getter { parts, default: default.filter(|v| !v.is_none()) })
    }

    fn get(&self, mut value: Value) -> Result<Value, Error> {
        budget::check()?;
        for part in &self.parts {
            value = item(&value, part)?;
            if let (true, Some(default)) = (value.is_undefined(), &self.default) {
                value = default.clone();
            }
        }
        Ok(value)
    }

    /// What to order or compare by: strings in lower case, unless their case counts.
    fn key(&self, value: &Value, case_sensitive: bool) -> Result<Value, Error> {
        let found = self.get(value.clone())?;
        Ok(match found.as_str() {
            Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
            _ => found,
        })
    }
}

fn sum(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let getter = Getter::of(args.get(0, "attribute"), None)?;
    let start = args.get(1, "start").unwrap_or(Value::from(0));
    if start.as_str().is_some() {
        return Err(fail("sum() can't sum strings [use ''.join(seq) instead]"));
    }
    let items = items_of(&value)?.into_iter().map(|item| getter.get(item));
    pyops::sum(start, items.collect::<Result<_, _>>()?)
}

fn extreme(value: Value, args: &[Value], largest: bool) -> Result<Value, Error> {
    let args = Args::new(args)?;
    let case_sensitive = args.flag(0, "case_sensitive");
    let getter = Getter::of(args.get(1, "attribute"), None)?;
    let mut best: Option<(Value, Value)> = None;
    for item in items_of(&value)? {
        let key = getter.key(&item, case_sensitive)?;
        let better = match &best {
            None => true,
            Some((_, so_far)) if largest => pyops::less(so_far, &key)?,
            Some((_, so_far)) => pyops::less(&key, so_far)?,
        };
        if better {
            best = Some((item, key));
        }
    }
    Ok(best.map_or(Value::UNDEFINED, |(item, _)| item))
}

/// Stable, by `<` alone as Python sorts; what can't be ordered is an error and never a panic, which
/// the standard library's sort may answer with.
fn sorted(mut items: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<Value>, Error> {
    if reverse {
        items.reverse();
    }
    let mut width = 1;
    while width < items.len() {
        let mut merged = Vec::with_capacity(items.len());
        for pair in items.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some(a), Some(b)) = (left.first(), right.first()) {
                budget::check()?;
                if pyops::less(&b.0, &a.0)? {
                    merged.push(b.clone());
                    right = &right[1..];
                } else {
                    merged.push(a.clone());
                    left = &left[1..];
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        items = merged;
        width *= 2;
    }
    if reverse {
        items.reverse();
    }
    Ok(items.into_iter().map(|(_, item)| item).collect())
}

fn sort(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let case_sensitive = args.flag(1, "case_sensitive");
    let attribute = args.get(2, "attribute").filter(|v| !v.is_none());
    let paths = match attribute.as_ref().and_then(|v| v.as_str()) {
        Some(text) => text.split(',').map(|path| Some(Value::from(path))).collect(),
        None => vec![attribute],
    };
    let getters: Vec<Getter> =
        paths.into_iter().map(|path| Getter::of(path, None)).collect::<Result<_, _>>()?;
    let mut keyed = Vec::new();
    for item in items_of(&value)? {
        let keys: Vec<Value> =
            getters.iter().map(|g| g.key(&item, case_sensitive)).collect::<Result<_, _>>()?;
        keyed.push((Value::from(keys), item));
    }
    sorted(keyed, args.flag(0, "reverse")).map(Value::from)
}

fn unique(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let case_sensitive = args.flag(0, "case_sensitive");
    let getter = Getter::of(args.get(1, "attribute"), None)?;
    let mut seen = Seen::default();
    let mut out = Vec::new();
    for item in items_of(&value)? {
        if seen.place(&getter.key(&item, case_sensitive)?)?.is_none() {
            out.push(item);
        }
    }
    Ok(Lazy::generator(out))
}

fn dictsort(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    if !is_dict(&value) {
        return Err(fail(format!("'{}' object has no attribute 'items'", type_name(&value))));
    }
    let args = Args::new(&args)?;
    let case_sensitive = args.flag(0, "case_sensitive");
    let by = args.get(1, "by").map(|v| str_of(&v)).transpose()?;
    let by_value = match by.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        _ => return Err(fail("You can only sort by either \"key\" or \"value\"")),
    };
    let whole = Getter::of(None, None)?;
    let mut keyed = Vec::new();
    for (key, item) in pairs(&value) {
        let order = whole.key(if by_value { &item } else { &key }, case_sensitive)?;
        keyed.push((order, Tuple::of(vec![key, item])));
    }
    sorted(keyed, args.flag(2, "reverse")).map(Value::from)
}

fn groupby(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let getter = Getter::of(Some(args.need(0, "attribute")?), args.get(1, "default"))?;
    let case_sensitive = args.flag(2, "case_sensitive");
    let mut keyed = Vec::new();
    for item in items_of(&value)? {
        let key = getter.key(&item, case_sensitive)?;
        keyed.push((key.clone(), Tuple::of(vec![key, item])));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for pair in sorted(keyed, false)? {
        let (key, entry) = (item(&pair, &Value::from(0))?, item(&pair, &Value::from(1))?);
        match groups.last_mut() {
            Some((last, _, members)) if pyops::equal(last, &key, 0)? => members.push(entry),
            _ => {
                let shown = if case_sensitive { key.clone() } else { getter.get(entry.clone())? };
                groups.push((key, shown, vec![entry]));
            }
        }
    }
    let named =
        |(_, shown, members)| Tuple::named(&["grouper", "list"], vec![shown, Value::from(members)]);
    Ok(Value::from(groups.into_iter().map(named).collect::<Vec<_>>()))
}

fn map(state: &State, value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let parsed = Args::new(&args)?;
    let mut out = Vec::new();
    if parsed.count() == 0 && parsed.named("attribute").is_some() {
        parsed.only(&["attribute", "default"])?;
        let getter = Getter::of(parsed.named("attribute"), parsed.named("default"))?;
        for item in taken(&value)? {
            out.push(getter.get(item)?);
        }
        return Ok(Lazy::generator(out));
    }
    let name = match args.first() {
        Some(name) if parsed.count() > 0 => str_of(name)?,
        _ => return Err(fail("map requires a filter argument")),
    };
    for item in taken(&value)? {
        budget::check()?;
        let mut all = vec![item];
        all.extend_from_slice(&args[1..]);
        out.push(state.apply_filter(&name, &all)?);
    }
    Ok(Lazy::generator(out))
}

fn filtered(
    state: &State,
    value: &Value,
    args: &[Value],
    of_attribute: bool,
    keep: bool,
) -> Result<Value, Error> {
    let count = Args::new(args)?.count();
    let skipped = usize::from(of_attribute);
    if count < skipped {
        return Err(fail("Missing parameter for attribute name"));
    }
    let getter = Getter::of(args.first().filter(|_| of_attribute).cloned(), None)?;
    let test = if count > skipped { Some(str_of(&args[skipped])?) } else { None };
    let mut out = Vec::new();
    for item in taken(value)? {
        budget::check()?;
        let tested = getter.get(item.clone())?;
        let holds = match &test {
            None => tested.is_true(),
            Some(name) => {
                let mut all = vec![tested];
                all.extend_from_slice(&args[skipped + 1..]);
                state.perform_test(name, &all)?
            }
        };
        if holds == keep {
            out.push(item);
        }
    }
    Ok(Lazy::generator(out))
}

/// Lists of `count` items; `fill` evens out the last one.
fn batch(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let count = args.need(0, "linecount")?;
    let count = count.as_i64().ok_or_else(|| fail("linecount must be an int"))?;
    let fill = args.get(1, "fill_with").filter(|v| !v.is_none());
    let mut out: Vec<Value> = Vec::new();
    let mut part: Vec<Value> = Vec::new();
    for item in items_of(&value)? {
        if part.len() as i64 == count {
            out.push(Value::from(std::mem::take(&mut part)));
        }
        part.push(item);
    }
    if !part.is_empty() {
        if let (Some(fill), Ok(count)) = (fill, usize::try_from(count)) {
            budget::check_size(count.saturating_mul(64))?;
            part.resize(count.max(part.len()), fill);
        }
        out.push(Value::from(part));
    }
    Ok(Lazy::generator(out))
}

/// `count` lists; `fill` evens out the last ones.
fn columns(value: Value, args: Rest<Value>) -> Result<Value, Error> {
    let args = Args::new(&args)?;
    let count = args.need(0, "slices")?;
    let count = count.as_i64().ok_or_else(|| fail("slices must be an int"))?;
    let fill = args.get(1, "fill_with").filter(|v| !v.is_none());
    let items = items_of(&value)?;
    if count == 0 {
        return Err(fail("integer division or modulo by zero"));
    }
    let count = usize::try_from(count).unwrap_or(0);
    budget::check_size(count.saturating_mul(64))?;
    let (each, extra) = match count {
        0 => (0, 0),
        count => (items.len() / count, items.len() % count),
    };
    let mut out = Vec::new();
    let mut at = 0;
    for i in 0..count {
        let size = each + usize::from(i < extra);
        let mut part = items[at..at + size].to_vec();
        at += size;
        if let (Some(fill), true) = (&fill, i >= extra) {
            part.push(fill.clone());
        }
        out.push(Value::from(part));
    }
    Ok(Lazy::generator(out))
}
