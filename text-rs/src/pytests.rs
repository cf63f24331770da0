//! Jinja2's tests, all of them, and none that only minijinja has.

use crate::pymethods;
use crate::pyops;
use crate::pyseq::hashable;
use crate::pyvalue::str_of;
use minijinja::machinery::ast::BinOpKind;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, State, Value};

const MINIJINJA_ONLY: [&str; 5] = ["int", "safe", "startingwith", "endingwith", "containing"];

pub fn install(env: &mut Environment) {
    for name in MINIJINJA_ONLY {
        env.remove_test(name);
    }
    install_types(env);
    install_comparisons(env);
    for name in ["lower", "upper"] {
        let method = if name == "lower" { "islower" } else { "isupper" };
        env.add_test(name, move |state: &State, v: Value| {
            let text = Value::from(str_of(&v)?);
            pymethods::unknown_method(state, &text, method, &[]).map(|r| r.is_true())
        });
    }
    env.add_test("filter", |state: &State, v: Value| {
        hashable(&v)?;
        Ok::<_, Error>(v.as_str().is_some_and(|name| minijinja::tests::is_filter(state, name)))
    });
    env.add_test("test", |state: &State, v: Value| {
        hashable(&v)?;
        Ok::<_, Error>(v.as_str().is_some_and(|name| minijinja::tests::is_test(state, name)))
    });
    env.add_test("odd", |v: Value| remainder_is(&v, &Value::from(2), 1));
    env.add_test("even", |v: Value| remainder_is(&v, &Value::from(2), 0));
    env.add_test("divisibleby", |v: Value, by: Value| remainder_is(&v, &by, 0));
}

fn install_types(env: &mut Environment) {
    env.add_test("boolean", |v: Value| v.kind() == ValueKind::Bool);
    env.add_test("true", |v: Value| v.kind() == ValueKind::Bool && v.is_true());
    env.add_test("false", |v: Value| v.kind() == ValueKind::Bool && !v.is_true());
    env.add_test("integer", |v: Value| v.is_integer());
    env.add_test("float", |v: Value| v.kind() == ValueKind::Number && !v.is_integer());
    env.add_test("number", |v: Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("string", |v: Value| v.as_str().is_some());
    env.add_test("mapping", |v: Value| crate::pyseq::is_dict(&v));
    env.add_test("escaped", |v: Value| v.is_safe());
    // An undefined value has the methods that these look for; they fail when they are called.
    env.add_test("callable", |v: Value| v.kind() == ValueKind::Plain || v.is_undefined());
    // What has a length and items: a str too, but no generator and no view of a dict.
    env.add_test("sequence", |v: Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String) || v.is_undefined()
    });
    env.add_test("iterable", |v: Value| {
        matches!(
            v.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Iterable
        ) || v.is_undefined()
    });
}

fn install_comparisons(env: &mut Environment) {
    for (op, names) in [
        (BinOpKind::Eq, &["==", "eq", "equalto"][..]),
        (BinOpKind::Ne, &["!=", "ne"][..]),
        (BinOpKind::Gt, &[">", "gt", "greaterthan"][..]),
        (BinOpKind::Gte, &[">=", "ge"][..]),
        (BinOpKind::Lt, &["<", "lt", "lessthan"][..]),
        (BinOpKind::Lte, &["<=", "le"][..]),
        (BinOpKind::In, &["in"][..]),
    ] {
        let code = pyops::code(op).unwrap_or(u32::MAX);
        for name in names {
            env.add_test(*name, move |a: Value, b: Value| {
                pyops::apply(code, &a, &b).map(|result| result.is_true())
            });
        }
    }
}

fn remainder_is(value: &Value, by: &Value, want: i64) -> Result<bool, Error> {
    let code = pyops::code(BinOpKind::Rem).unwrap_or(u32::MAX);
    pyops::equal(&pyops::apply(code, value, by)?, &Value::from(want), 0)
}
