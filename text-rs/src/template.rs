//! Chat templates: Jinja2 as transformers sets it up, within bounds.

use crate::{budget, filters, pymethods, pyvalue, rewrite, source};
use minijinja::machinery::{make_string_output, parse, CodeGenerator, Vm, WhitespaceConfig};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use std::cell::RefCell;

/// A render runs on its own thread, so that a deep template can't overflow the caller's stack.
const STACK_BYTES: usize = 64 << 20;

#[derive(Clone, Copy)]
pub struct Limits {
    pub steps: u64,
    pub bytes: u64,
    pub time_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    Invalid,
    Raised,
    Limit,
    Internal,
}

#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure { kind: FailureKind::Invalid, message: message.into() }
    }
}

thread_local! {
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps panics off stderr: they come back as messages, with their place.
pub fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map(|l| format!("{}:{}", l.file(), l.line()));
            let _ = PANIC_PLACE.try_with(|p| *p.borrow_mut() = place.unwrap_or_default());
        }));
    });
}

pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("unknown panic");
    let place = PANIC_PLACE.with(|p| std::mem::take(&mut *p.borrow_mut()));
    format!("{text} ({place})")
}

fn on_thread<T: Send>(body: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    let internal = |message: String| Failure { kind: FailureKind::Internal, message };
    std::thread::scope(|scope| {
        let caught = || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))
                .unwrap_or_else(|payload| Err(internal(panic_text(&*payload))))
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, caught);
        match thread {
            Ok(thread) => thread.join().unwrap_or_else(|p| Err(internal(panic_text(&*p)))),
            Err(e) => Err(internal(format!("no thread for a chat template: {e}"))),
        }
    })
}

/// Whether `text` is a template that can be run.
pub fn check(text: &str) -> Result<(), Failure> {
    on_thread(|| {
        let prepared = source::prepare(text).map_err(Failure::invalid)?;
        compile(&prepared).map(|_| ())
    })
}

type Compiled<'s> = (
    minijinja::machinery::Instructions<'s>,
    std::collections::BTreeMap<&'s str, minijinja::machinery::Instructions<'s>>,
);

fn compile(prepared: &str) -> Result<Compiled<'_>, Failure> {
    let whitespace = WhitespaceConfig {
        keep_trailing_newline: false,
        lstrip_blocks: true,
        trim_blocks: true,
    };
    let parsed = parse(prepared, "chat template", Default::default(), whitespace)
        .map_err(|e| Failure::invalid(text_of(&e)))?;
    let tree = rewrite::stmt(&parsed).map_err(Failure::invalid)?;
    let mut generator = CodeGenerator::new("chat template", prepared);
    generator.compile_stmt(&tree);
    Ok(generator.finish())
}

/// One variable, or a JSON object full of them.
pub enum Variables<'a> {
    Json(&'a [u8]),
    Text(&'a str),
    Object(&'a [u8]),
}

fn context(variables: &[(&str, Variables)]) -> Result<Value, Failure> {
    let parse = |name: &str, json: &[u8]| {
        serde_json::from_slice::<serde_json::Value>(json)
            .map_err(|e| Failure::invalid(format!("{name}: {e}")))
    };
    let mut all = serde_json::Map::new();
    for (name, value) in variables {
        match value {
            Variables::Json(json) => {
                all.insert((*name).to_owned(), parse(name, json)?);
            }
            Variables::Text(text) => {
                all.insert((*name).to_owned(), serde_json::Value::from(*text));
            }
            Variables::Object(json) => match parse(name, json)? {
                serde_json::Value::Object(members) => all.extend(members),
                _ => return Err(Failure::invalid(format!("{name} must be a JSON object"))),
            },
        }
    }
    Ok(Value::from_serialize(&all))
}

pub fn render(
    text: &str,
    variables: &[(&str, Variables)],
    now_s: i64,
    limits: Limits,
) -> Result<String, Failure> {
    on_thread(|| {
        budget::start(limits.bytes, limits.time_ms);
        let prepared = source::prepare(text).map_err(Failure::invalid)?;
        let root = context(variables)?;
        let (instructions, blocks) = compile(&prepared)?;
        let env = environment(now_s, limits);
        let mut out = String::new();
        let mut output = make_string_output(&mut out);
        let ended = Vm::new(&env)
            .eval(&instructions, root, &blocks, &mut output, AutoEscape::None)
            .map(|_| ());
        drop(output);
        match ended {
            Ok(()) => Ok(out),
            Err(e) => Err(failure_of(&e)),
        }
    })
}

fn environment<'e>(now_s: i64, limits: Limits) -> Environment<'e> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_fuel(Some(limits.steps.min(isize::MAX as u64)));
    env.set_formatter(|out, _state, value| {
        budget::check()?;
        let written = match value.as_str() {
            Some(text) => budget::check_size(text.len()).map(|_| out.write_str(text))?,
            None => out.write_str(&pyvalue::str_of(value)?),
        };
        written.map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    env.set_unknown_method_callback(pymethods::unknown_method);
    filters::install(&mut env, now_s);
    env
}

fn failure_of(error: &Error) -> Failure {
    let raised = filters::take_raised();
    let kind = if budget::was_hit() || error.kind() == ErrorKind::OutOfFuel {
        FailureKind::Limit
    } else if let Some(message) = raised {
        return Failure { kind: FailureKind::Raised, message };
    } else {
        FailureKind::Invalid
    };
    Failure { kind, message: text_of(error) }
}

fn text_of(error: &Error) -> String {
    let mut text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    if let Some(line) = error.line() {
        text = format!("line {line}: {text}");
    }
    text
}
