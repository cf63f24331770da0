//! Python's other sequences (tuples, ranges, views of dicts, generators), and indices and slices.

use crate::budget;
use crate::pyops;
use crate::pyvalue::{fail, pairs, type_name, BoundMethod};
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// Largest range, as in Jinja2's sandbox.
const RANGE_MAX: usize = 100_000;

/// A list that prints with round brackets; its items may have names beside their places.
#[derive(Debug)]
pub struct Tuple(pub Vec<Value>, &'static [&'static str]);

impl Tuple {
    pub fn of(items: Vec<Value>) -> Value {
        Tuple::named(&[], items)
    }

    pub fn named(names: &'static [&'static str], items: Vec<Value>) -> Value {
        Value::from_object(Tuple(items, names))
    }
}

impl Object for Tuple {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let named = |name: &str| self.1.iter().position(|n| *n == name);
        let place = key.as_str().map_or(key.as_usize(), named);
        self.0.get(place?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }
}

/// `range(start, stop, step)`: a sequence that is not written out.
#[derive(Debug)]
pub struct Range {
    start: i64,
    stop: i64,
    step: i64,
    len: usize,
}

impl Range {
    pub fn of(start: i64, stop: i64, step: i64) -> Result<Value, Error> {
        if step == 0 {
            return Err(fail("range() arg 3 must not be zero"));
        }
        let span =
            if step > 0 { stop as i128 - start as i128 } else { start as i128 - stop as i128 };
        let len = (span.max(0) + step.unsigned_abs() as i128 - 1) / step.unsigned_abs() as i128;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > RANGE_MAX {
            return Err(fail(format!(
                "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({RANGE_MAX})."
            )));
        }
        Ok(Value::from_object(Range { start, stop, step, len }))
    }

    fn at(&self, index: usize) -> i64 {
        self.start.saturating_add(self.step.saturating_mul(index as i64))
    }

    pub fn repr(&self) -> String {
        match self.step {
            1 => format!("range({}, {})", self.start, self.stop),
            step => format!("range({}, {}, {step})", self.start, self.stop),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|i| *i < self.len)?;
        Some(Value::from(self.at(index)))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

/// What can be iterated but not indexed: a view of a dict, which has a length, or a generator, which
/// has none and gives its items once.
#[derive(Debug)]
pub struct Lazy {
    pub kind: &'static str,
    pub items: Vec<Value>,
    spent: AtomicBool,
}

impl Lazy {
    /// `d.keys()`, `d.values()` or `d.items()`.
    pub fn view(map: &Value, method: &str) -> Value {
        let (kind, items): (_, Vec<Value>) = match method {
            "keys" => ("dict_keys", pairs(map).into_iter().map(|(k, _)| k).collect()),
            "values" => ("dict_values", pairs(map).into_iter().map(|(_, v)| v).collect()),
            _ => {
                ("dict_items", pairs(map).into_iter().map(|(k, v)| Tuple::of(vec![k, v])).collect())
            }
        };
        Value::from_object(Lazy { kind, items, spent: AtomicBool::new(false) })
    }

    pub fn generator(items: Vec<Value>) -> Value {
        Value::from_object(Lazy { kind: "generator", items, spent: AtomicBool::new(false) })
    }

    pub fn is_view(&self) -> bool {
        self.kind != "generator"
    }
}

impl Object for Lazy {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if !self.is_view() && self.spent.swap(true, Ordering::Relaxed) {
            return Enumerator::Empty;
        }
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.is_view().then_some(self.items.len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.is_view() || !self.items.is_empty()
    }
}

/// `iter(value)`, all of it.
pub fn items_of(value: &Value) -> Result<Vec<Value>, Error> {
    budget::check()?;
    if let Some(text) = value.as_str() {
        budget::check_size(text.len().saturating_mul(32))?;
        return Ok(text.chars().map(|c| Value::from(c.to_string())).collect());
    }
    match value.kind() {
        ValueKind::Undefined => Ok(Vec::new()),
        ValueKind::Map | ValueKind::Seq | ValueKind::Iterable => Ok(value.try_iter()?.collect()),
        _ => Err(fail(format!("'{}' object is not iterable", type_name(value)))),
    }
}

/// A number that can be an index; Python takes bools too.
pub fn index_of(value: &Value) -> Option<i64> {
    match value.kind() {
        ValueKind::Bool => Some(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => Some(match i128::try_from(value.clone()) {
            Ok(i) => i.clamp(i64::MIN as i128, i64::MAX as i128) as i64,
            Err(_) => i64::MAX,
        }),
        _ => None,
    }
}

fn is_hashable(key: &Value) -> bool {
    match key.kind() {
        ValueKind::Map => false,
        ValueKind::Seq => match key.downcast_object_ref::<Tuple>() {
            Some(tuple) => tuple.0.iter().all(is_hashable),
            None => key.downcast_object_ref::<Range>().is_some(),
        },
        ValueKind::Iterable => key
            .downcast_object_ref::<Lazy>()
            .is_some_and(|lazy| !matches!(lazy.kind, "dict_keys" | "dict_items")),
        _ => true,
    }
}

/// Fails for what can be no key of a dict.
pub fn hashable(key: &Value) -> Result<(), Error> {
    match is_hashable(key) {
        true => Ok(()),
        false => Err(fail(format!("unhashable type: '{}'", type_name(key)))),
    }
}

/// Values seen so far, by Python's equality; the place of each.
#[derive(Default)]
pub struct Seen {
    by_text: HashMap<String, usize>,
    others: Vec<(Value, usize)>,
    count: usize,
}

impl Seen {
    /// The place of a value equal to `key`; `None` where it is new, which is the next place.
    pub fn place(&mut self, key: &Value) -> Result<Option<usize>, Error> {
        hashable(key)?;
        let next = self.count;
        let number = || f64::try_from(key.clone()).ok();
        let text = match key.kind() {
            ValueKind::String => key.as_str().map(|text| format!("s{text}")),
            ValueKind::Bool => Some(format!("n{}", u8::from(key.is_true()))),
            ValueKind::Number if key.is_integer() => Some(format!("n{key}")),
            ValueKind::Number => number().map(|x| match x.fract() == 0.0 && x.abs() < 1e38 {
                true => format!("n{}", x as i128),
                false => format!("f{x}"),
            }),
            _ => None,
        };
        let known = match text {
            Some(text) => match self.by_text.get(&text) {
                Some(place) => Some(*place),
                None => {
                    self.by_text.insert(text, next);
                    None
                }
            },
            None => {
                for (other, place) in &self.others {
                    if pyops::equal(other, key, 0)? {
                        return Ok(Some(*place));
                    }
                }
                self.others.push((key.clone(), next));
                None
            }
        };
        self.count += usize::from(known.is_none());
        Ok(known)
    }
}

/// What a dict holds under `key`, where 1, 1.0 and True are one key.
pub fn dict_get(map: &Value, key: &Value) -> Option<Value> {
    let object = map.as_object()?;
    if let Some(found) = object.get_value(key) {
        return Some(found);
    }
    let number = match key.kind() {
        ValueKind::Bool => f64::from(u8::from(key.is_true())),
        ValueKind::Number => f64::try_from(key.clone()).ok()?,
        _ => return None,
    };
    let forms = [
        Some(Value::from(number)),
        (number.fract() == 0.0 && number.abs() < 9e15).then(|| Value::from(number as i64)),
        (number == 0.0).then(|| Value::from(false)),
        (number == 1.0).then(|| Value::from(true)),
    ];
    forms.into_iter().flatten().find_map(|form| object.get_value(&form))
}

/// `value[key]` by the rules of Jinja2: what is not there is undefined.
pub fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    budget::check()?;
    if value.is_undefined() {
        return Err(fail("a value is undefined"));
    }
    let place = |len: usize| {
        let index = index_of(key)?;
        let from_start = if index < 0 { index + i64::try_from(len).ok()? } else { index };
        usize::try_from(from_start).ok().filter(|i| *i < len)
    };
    if let Some(text) = value.as_str() {
        let of = |c: char| string_like(value, c.to_string());
        let found = match text.is_ascii() {
            true => place(text.len()).map(|i| of(text.as_bytes()[i] as char)),
            false => place(text.chars().count()).and_then(|i| text.chars().nth(i)).map(of),
        };
        return Ok(found.unwrap_or(Value::UNDEFINED));
    }
    match value.kind() {
        ValueKind::Seq => match place(value.len().unwrap_or(0)) {
            Some(at) => value.get_item(&Value::from(at)),
            None if key.as_str().is_some() => value.get_item(key),
            None => Ok(Value::UNDEFINED),
        },
        ValueKind::Map if is_dict(value) => Ok(match dict_get(value, key) {
            Some(found) => found,
            None if key.as_str().is_some_and(|name| BoundMethod::NAMES.contains(&name)) => {
                BoundMethod::of(value.clone(), key.as_str().unwrap_or(""))
            }
            None => Value::UNDEFINED,
        }),
        ValueKind::Map | ValueKind::Plain => value.get_item(key),
        _ => Ok(Value::UNDEFINED),
    }
}

/// Whether Python would see a dict: minijinja's namespaces and loops are maps too.
pub fn is_dict(value: &Value) -> bool {
    let special = |name: &str| name.contains("Namespace") || name.contains("Loop");
    value.kind() == ValueKind::Map && !value.as_object().is_some_and(|o| special(o.type_name()))
}

/// A str, marked safe where `like` is.
pub fn string_like(like: &Value, text: String) -> Value {
    match like.is_safe() {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    }
}

/// The places that `[start:stop:step]` names in `len` items: the first, the one after the last, and
/// how many there are.
fn places(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> (i64, i64, usize) {
    let len = len as i64;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |given: Option<i64>, otherwise: i64| match given {
        None => otherwise,
        Some(i) if i < 0 => i.saturating_add(len).max(low),
        Some(i) => i.min(high),
    };
    let (first, last) = match step > 0 {
        true => (bound(start, low), bound(stop, high)),
        false => (bound(start, high), bound(stop, low)),
    };
    let span = if step > 0 { last - first } else { first - last };
    let width = step.unsigned_abs();
    (first, last, if span <= 0 { 0 } else { ((span as u64 - 1) / width + 1) as usize })
}

/// `value[start:stop:step]`.
pub fn slice(value: &Value, bounds: &[Value; 3]) -> Result<Value, Error> {
    budget::check()?;
    if value.is_undefined() {
        return Err(fail("a value is undefined"));
    }
    if value.as_str().is_none() && value.kind() != ValueKind::Seq {
        return Err(fail(match value.kind() {
            ValueKind::Map => "unhashable type: 'slice'".to_owned(),
            _ => format!("'{}' object is not subscriptable", type_name(value)),
        }));
    }
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        *number = match index_of(bound) {
            None if bound.is_none() => None,
            None => {
                return Err(fail(
                    "slice indices must be integers or None or have an __index__ method",
                ))
            }
            index => index,
        };
    }
    let [start, stop, step] = numbers;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(fail("slice step cannot be zero"));
    }
    let at = |first: i64, i: usize| (first + step.saturating_mul(i as i64)) as usize;
    if let Some(text) = value.as_str() {
        return slice_text(text, start, stop, step).map(|t| string_like(value, t));
    }
    let len = value.len().unwrap_or(0);
    let (first, last, count) = places(len, start, stop, step);
    if let Some(range) = value.downcast_object_ref::<Range>() {
        let place = |i: i64| range.start.saturating_add(range.step.saturating_mul(i));
        return Range::of(place(first), place(last), range.step.saturating_mul(step));
    }
    budget::check_size(count.saturating_mul(size_of::<Value>()))?;
    let items = (0..count).map(|i| value.get_item(&Value::from(at(first, i))));
    let items: Vec<Value> = items.collect::<Result<_, _>>()?;
    Ok(match value.downcast_object_ref::<Tuple>() {
        Some(_) => Tuple::of(items),
        None => Value::from(items),
    })
}

fn slice_text(
    text: &str,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> Result<String, Error> {
    if text.is_ascii() {
        let (first, _, count) = places(text.len(), start, stop, step);
        let byte = |i: usize| text.as_bytes()[(first + step.saturating_mul(i as i64)) as usize];
        return Ok((0..count).map(|i| byte(i) as char).collect());
    }
    budget::check_size(text.len().saturating_mul(size_of::<char>()))?;
    let chars: Vec<char> = text.chars().collect();
    let (first, _, count) = places(chars.len(), start, stop, step);
    Ok((0..count).map(|i| chars[(first + step.saturating_mul(i as i64)) as usize]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPython's list(range(len))[start:stop:step], the slow way: walks every index that could be meant.
    fn expected(len: i64, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<i64> {
        let clip = |i: i64| if i < 0 { i + len } else { i };
        let mut at = match (start, step > 0) {
            (Some(i), true) => clip(i).max(0),
            (Some(i), false) => clip(i).min(len - 1),
            (None, true) => 0,
            (None, false) => len - 1,
        };
        let end = stop.map_or(if step > 0 { len } else { -1 }, |i| clip(i).max(-1));
        let mut out = Vec::new();
        while at >= 0 && at < len && ((step > 0 && at < end) || (step < 0 && at > end)) {
            out.push(at);
            at += step;
        }
        out
    }

    #[test]
    fn slices_are_pythons() {
        let bounds: Vec<Option<i64>> = std::iter::once(None).chain((-7..8).map(Some)).collect();
        for len in 0..6i64 {
            let list = Value::from((0..len).collect::<Vec<_>>());
            let text =
                Value::from((0..len).map(|i| char::from(b'0' + i as u8)).collect::<String>());
            for (&start, &stop) in bounds.iter().flat_map(|a| bounds.iter().map(move |b| (a, b))) {
                for step in (-7..8).filter(|s| *s != 0) {
                    let given = [Value::from(start), Value::from(stop), Value::from(step)];
                    let want = expected(len, start, stop, step);
                    let got = slice(&list, &given).unwrap();
                    assert_eq!(got, Value::from(want.clone()), "{len} {start:?} {stop:?} {step}");
                    let digits: String = want.iter().map(|i| i.to_string()).collect();
                    assert_eq!(slice(&text, &given).unwrap(), Value::from(digits));
                }
            }
        }
    }

    #[test]
    fn extreme_slices_end() {
        let extremes = [i64::MIN, i64::MAX, -1, 0, 1];
        let values = [Value::from(vec![1, 2, 3]), Value::from("é€x"), Range::of(0, 9, 2).unwrap()];
        for value in &values {
            for start in extremes {
                for stop in extremes {
                    for step in [i64::MIN, i64::MAX, -1, 1] {
                        let bounds = [Value::from(start), Value::from(stop), Value::from(step)];
                        assert!(slice(value, &bounds).is_ok());
                    }
                }
            }
        }
    }
}
