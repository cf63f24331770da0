//! Python's binary operators. minijinja's own differ in small ways (`~` writes true for True) and
//! have no bound on the size of what they make.

use crate::budget;
use crate::scalars::escaped;
use crate::pyseq::{dict_get, hashable, string_like, Lazy, Range, Tuple};
use crate::pyvalue::{fail, pairs, type_name, write_str};
use minijinja::machinery::ast::BinOpKind;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};
use std::cmp::Ordering;

/// The operators that src/rewrite.rs turns into calls, by the number it passes.
pub fn code(op: BinOpKind) -> Option<u32> {
    Some(match op {
        BinOpKind::Add => 0,
        BinOpKind::Sub => 1,
        BinOpKind::Mul => 2,
        BinOpKind::Div => 3,
        BinOpKind::FloorDiv => 4,
        BinOpKind::Rem => 5,
        BinOpKind::Pow => 6,
        BinOpKind::Concat => 7,
        BinOpKind::Eq => 8,
        BinOpKind::Ne => 9,
        BinOpKind::Lt => 10,
        BinOpKind::Lte => 11,
        BinOpKind::Gt => 12,
        BinOpKind::Gte => 13,
        BinOpKind::In => 14,
        BinOpKind::ScAnd | BinOpKind::ScOr => return None,
    })
}

pub const NOT_IN: u32 = 15;

/// `operands` is `a, code, b` or a comparison's `a, code, b, code, c, …`.
pub fn apply_all(operands: &[Value]) -> Result<Value, Error> {
    let mut result = Value::from(true);
    let mut i = 0;
    while let [a, code, b, ..] = &operands[i..] {
        let code = code.as_usize().unwrap_or(usize::MAX) as u32;
        result = apply(code, a, b)?;
        i += 2;
        if i + 1 < operands.len() && !result.is_true() {
            break;
        }
    }
    Ok(result)
}

/// The order of two values for sorting; what Python can't order is an error.
pub fn less(a: &Value, b: &Value) -> Result<bool, Error> {
    order("<", a, b).map(|o| o == Some(Ordering::Less))
}

pub fn apply(code: u32, a: &Value, b: &Value) -> Result<Value, Error> {
    budget::check()?;
    match code {
        0 => add(a, b),
        1 => arithmetic("-", a, b, |x, y| x.checked_sub(y), |x, y| x - y),
        2 => mul(a, b),
        3 => div(a, b),
        4 => floor_div(a, b),
        5 => rem(a, b),
        6 => pow(a, b),
        7 => concat(a, b),
        8 => Ok(Value::from(equal(a, b, 0)?)),
        9 => Ok(Value::from(!equal(a, b, 0)?)),
        10 => order("<", a, b).map(|o| Value::from(o == Some(Ordering::Less))),
        11 => order("<=", a, b)
            .map(|o| Value::from(matches!(o, Some(Ordering::Less | Ordering::Equal)))),
        12 => order(">", a, b).map(|o| Value::from(o == Some(Ordering::Greater))),
        13 => order(">=", a, b)
            .map(|o| Value::from(matches!(o, Some(Ordering::Greater | Ordering::Equal)))),
        14 => contains(b, a).map(Value::from),
        NOT_IN => contains(b, a).map(|found| Value::from(!found)),
        _ => Err(fail("unknown operator")),
    }
}

#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Option<Number> {
        match value.kind() {
            ValueKind::Bool => Some(Number::Int(value.is_true() as i128)),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).ok().map(Number::Int)
            }
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Float(f) => f,
        }
    }
}

pub fn int(value: i128) -> Value {
    match i64::try_from(value) {
        Ok(small) => Value::from(small),
        Err(_) => Value::from(value),
    }
}

fn mismatch(op: &str, a: &Value, b: &Value) -> Error {
    for operand in [a, b] {
        if operand.is_undefined() {
            return fail("a value is undefined");
        }
    }
    if op == "+" && a.as_str().is_some() {
        return fail(format!("can only concatenate str (not \"{}\") to str", type_name(b)));
    }
    let (a, b) = (type_name(a), type_name(b));
    fail(format!("unsupported operand type(s) for {op}: '{a}' and '{b}'"))
}

fn arithmetic(
    op: &str,
    a: &Value,
    b: &Value,
    ints: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(x)), Some(Number::Int(y))) => {
            ints(x, y).map(int).ok_or_else(|| fail("integer out of range"))
        }
        (Some(x), Some(y)) => Ok(Value::from(floats(x.float(), y.float()))),
        _ => Err(mismatch(op, a, b)),
    }
}

/// The sequences that one operation may join or compare: lists with lists, tuples with tuples.
#[derive(PartialEq)]
enum Sequence {
    List,
    Tuple,
    Range,
}

fn sequence(value: &Value) -> Option<Sequence> {
    match value.kind() {
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => Some(Sequence::Tuple),
        ValueKind::Seq if value.downcast_object_ref::<Range>().is_some() => Some(Sequence::Range),
        ValueKind::Seq => Some(Sequence::List),
        ValueKind::Iterable if value.downcast_object_ref::<Lazy>().is_none() => Some(Sequence::List),
        _ => None,
    }
}

fn both(a: &Value, b: &Value) -> Option<Sequence> {
    sequence(a).filter(|kind| sequence(b).as_ref() == Some(kind))
}

fn list_or_tuple(kind: Sequence, items: Vec<Value>) -> Result<Value, Error> {
    let made = if kind == Sequence::Tuple { Tuple::of(items) } else { Value::from(items) };
    budget::check_shape(&made)?;
    Ok(made)
}

pub fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        budget::check_size(x.len() + y.len())?;
        // What is safe escapes what is added to it.
        return Ok(match (a.is_safe(), b.is_safe()) {
            (false, false) => Value::from([x, y].concat()),
            (true, true) => Value::from_safe_string([x, y].concat()),
            (true, false) => Value::from_safe_string([x, &escaped(y)?].concat()),
            (false, true) => Value::from_safe_string([&escaped(x)?, y].concat()),
        });
    }
    match both(a, b) {
        Some(kind) if kind != Sequence::Range => {
            list_or_tuple(kind, a.try_iter()?.chain(b.try_iter()?).collect())
        }
        _ => arithmetic("+", a, b, |x, y| x.checked_add(y), |x, y| x + y),
    }
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    for (one, other) in [(a, b), (b, a)] {
        let Some(Number::Int(times)) = Number::of(other) else { continue };
        let times = times.clamp(0, u32::MAX as i128) as usize;
        if let Some(s) = one.as_str() {
            budget::check_size(s.len().saturating_mul(times))?;
            return Ok(string_like(one, s.repeat(times)));
        }
        if let Some(kind) = sequence(one).filter(|kind| *kind != Sequence::Range) {
            let items: Vec<Value> = one.try_iter()?.collect();
            budget::check_size(items.len().saturating_mul(times).saturating_mul(64))?;
            let count = items.len() * times;
            return list_or_tuple(kind, items.into_iter().cycle().take(count).collect());
        }
    }
    arithmetic("*", a, b, |x, y| x.checked_mul(y), |x, y| x * y)
}

/// `start + items[0] + items[1] …`, in one pass where they are lists.
pub fn sum(start: Value, items: Vec<Value>) -> Result<Value, Error> {
    let mut total = start;
    let kind = sequence(&total).filter(|kind| *kind != Sequence::Range);
    if let Some(kind) = kind.filter(|kind| items.iter().all(|i| sequence(i).as_ref() == Some(kind))) {
        let mut joined: Vec<Value> = total.try_iter()?.collect();
        for item in &items {
            budget::check_size((joined.len() + item.len().unwrap_or(0)).saturating_mul(24))?;
            joined.extend(item.try_iter()?);
        }
        return list_or_tuple(kind, joined);
    }
    for item in &items {
        budget::check()?;
        total = add(&total, item)?;
    }
    Ok(total)
}

pub fn neg(value: &Value) -> Result<Value, Error> {
    budget::check()?;
    match Number::of(value) {
        Some(Number::Int(i)) => i.checked_neg().map(int).ok_or_else(|| fail("integer out of range")),
        Some(Number::Float(x)) => Ok(Value::from(-x)),
        None if value.is_undefined() => Err(fail("a value is undefined")),
        None => Err(fail(format!("bad operand type for unary -: '{}'", type_name(value)))),
    }
}

fn numbers(op: &str, a: &Value, b: &Value) -> Result<(Number, Number), Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(x), Some(y)) => Ok((x, y)),
        _ => Err(mismatch(op, a, b)),
    }
}

fn div(a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = numbers("/", a, b)?;
    if y.float() == 0.0 {
        return Err(fail("division by zero"));
    }
    Ok(Value::from(x.float() / y.float()))
}

fn floor_div(a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers("//", a, b)? {
        (_, Number::Int(0)) => Err(fail("integer division or modulo by zero")),
        (Number::Int(x), Number::Int(y)) => {
            let quotient = x.checked_div(y).ok_or_else(|| fail("integer out of range"))?;
            let down = x % y != 0 && (x < 0) != (y < 0);
            Ok(int(quotient - down as i128))
        }
        (_, y) if y.float() == 0.0 => Err(fail("float floor division by zero")),
        (x, y) => Ok(Value::from((x.float() / y.float()).floor())),
    }
}

fn rem(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        return crate::pyformat::percent(a, format, b);
    }
    match numbers("%", a, b)? {
        (_, Number::Int(0)) => Err(fail("integer division or modulo by zero")),
        (Number::Int(x), Number::Int(y)) => {
            let r = x.checked_rem(y).ok_or_else(|| fail("integer out of range"))?;
            Ok(int(if r != 0 && (r < 0) != (y < 0) { r + y } else { r }))
        }
        (_, y) if y.float() == 0.0 => Err(fail("float modulo by zero")),
        (x, y) => {
            let (x, y) = (x.float(), y.float());
            let r = x % y;
            Ok(Value::from(if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }))
        }
    }
}

fn pow(a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers("**", a, b)? {
        (Number::Int(x), Number::Int(y)) if y >= 0 => u32::try_from(y)
            .ok()
            .and_then(|y| x.checked_pow(y))
            .map(int)
            .ok_or_else(|| fail("integer out of range")),
        (x, y) => {
            let (x, y) = (x.float(), y.float());
            let power = x.powf(y);
            if x.is_finite() && y.is_finite() && !power.is_finite() {
                let why = if x == 0.0 { "0.0 cannot be raised to a negative power" } else { "Numerical result out of range" };
                return Err(fail(why));
            }
            Ok(Value::from(power))
        }
    }
}

fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    write_str(&mut out, a)?;
    write_str(&mut out, b)?;
    Ok(Value::from(out))
}

fn number_order(x: Number, y: Number) -> Option<Ordering> {
    match (x, y) {
        (Number::Int(x), Number::Int(y)) => Some(x.cmp(&y)),
        (x, y) => x.float().partial_cmp(&y.float()),
    }
}

pub fn equal(a: &Value, b: &Value, depth: usize) -> Result<bool, Error> {
    budget::check()?;
    if depth > 200 {
        return Err(fail("value is nested too deeply"));
    }
    if let (Some(x), Some(y)) = (Number::of(a), Number::of(b)) {
        return Ok(number_order(x, y) == Some(Ordering::Equal));
    }
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return Ok(x == y);
    }
    if both(a, b).is_some() {
        if let (Some(x), Some(y)) = (a.len(), b.len()) {
            if x != y {
                return Ok(false);
            }
        }
        let (mut x, mut y) = (a.try_iter()?, b.try_iter()?);
        loop {
            match (x.next(), y.next()) {
                (Some(x), Some(y)) if equal(&x, &y, depth + 1)? => continue,
                (None, None) => return Ok(true),
                _ => return Ok(false),
            }
        }
    }
    if a.kind() == ValueKind::Map && b.kind() == ValueKind::Map {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (key, x) in pairs(a) {
            match dict_get(b, &key) {
                Some(y) if equal(&x, &y, depth + 1)? => continue,
                _ => return Ok(false),
            }
        }
        return Ok(true);
    }
    match (sequence(a), sequence(b)) {
        // Comparing the items would use up a generator.
        (None, None) if a.kind() == ValueKind::Iterable => Ok(false),
        (None, None) => Ok(a.kind() == b.kind() && a == b),
        _ => Ok(false), // a list is no tuple
    }
}

fn order(op: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    if let (Some(x), Some(y)) = (Number::of(a), Number::of(b)) {
        return Ok(number_order(x, y));
    }
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        return Ok(Some(x.cmp(y)));
    }
    if both(a, b).is_some_and(|kind| kind != Sequence::Range) {
        for (x, y) in a.try_iter()?.zip(b.try_iter()?) {
            if !equal(&x, &y, 0)? {
                return order(op, &x, &y);
            }
        }
        return Ok(a.len().partial_cmp(&b.len()));
    }
    if a.is_undefined() || b.is_undefined() {
        return Err(fail("a value is undefined"));
    }
    let (a, b) = (type_name(a), type_name(b));
    Err(fail(format!("'{op}' not supported between instances of '{a}' and '{b}'")))
}

pub fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    if let Some(text) = container.as_str() {
        return match value.as_str() {
            Some(part) => Ok(text.contains(part)),
            None => Err(fail(format!(
                "'in <string>' requires string as left operand, not {}",
                type_name(value)
            ))),
        };
    }
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::Map => hashable(value).map(|_| dict_get(container, value).is_some()),
        ValueKind::Seq | ValueKind::Iterable => {
            for item in container.try_iter()? {
                if equal(&item, value, 0)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(fail(format!("argument of type '{}' is not iterable", type_name(container)))),
    }
}
