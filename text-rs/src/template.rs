//! Chat templates: Jinja2 as transformers sets it up, within bounds.

use crate::{budget, filters, pymethods, pyvalue, rewrite, source};
use minijinja::machinery::{make_string_output, parse, tokenize, CodeGenerator, Token, Vm, WhitespaceConfig};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use std::cell::RefCell;

/// A render runs on its own thread, so that a deep template can't overflow the caller's stack.
const STACK_BYTES: usize = 64 << 20;

const WHITESPACE: WhitespaceConfig =
    WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };

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

/// Keeps panics off stderr: they come back as messages, with file and line.
pub fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            // The file's name alone: its path is one of the machine that built this.
            let name = |l: &std::panic::Location| {
                let file = l.file().rsplit(['/', '\\']).next().unwrap_or("").to_owned();
                format!("{file}:{}", l.line())
            };
            let place = info.location().map(name);
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
            // What makes the engine panic is in the template or its variables, which are not ours.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|payload| {
                let why = panic_text(&*payload);
                Err(Failure::invalid(format!("the template engine can't evaluate this: {why}")))
            })
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
    let parsed = parse(prepared, "chat template", Default::default(), WHITESPACE)
        .map_err(|e| Failure::invalid(text_of(&e)))?;
    let rewriter = rewrite::Rewriter { source: prepared };
    let tree = rewriter.stmt(&parsed).map_err(Failure::invalid)?;
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

type Context = serde_json::Map<String, serde_json::Value>;

fn context(variables: &[(&str, Variables)]) -> Result<Context, Failure> {
    let parse = |name: &str, json: &[u8]| {
        serde_json::from_slice::<serde_json::Value>(json)
            .map_err(|e| Failure::invalid(format!("{name}: {e}")))
    };
    let mut all = Context::new();
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
    Ok(all)
}

/// The messages of a conversation that are objects.
fn messages_of(context: &mut Context) -> impl Iterator<Item = &mut Context> {
    let list = context.get_mut("messages").and_then(serde_json::Value::as_array_mut);
    list.into_iter().flatten().filter_map(serde_json::Value::as_object_mut)
}

/// Whether a string of the template's code, not its text, is `word`.
fn names(prepared: &str, word: &str) -> bool {
    tokenize(prepared, false, Default::default(), WHITESPACE).map_while(Result::ok).any(|(t, _)| match t {
        Token::Str(s) => s == word,
        Token::String(s) => &*s == word,
        _ => false,
    })
}

/// `developer` is what the OpenAI API now calls `system`. Templates that know the role have it in a
/// string to compare with; the others get the name that they know.
fn rename_developers(context: &mut Context, prepared: &str) {
    if names(prepared, "developer") {
        return;
    }
    for message in messages_of(context) {
        match message.get_mut("role") {
            Some(role) if role.as_str() == Some("developer") => *role = "system".into(),
            _ => {}
        }
    }
}

/// Puts an empty text where messages have no content, and says whether there was such a place.
fn fill_contents(context: &mut Context) -> bool {
    let mut filled = false;
    for message in messages_of(context) {
        let content = message.entry("content").or_insert(serde_json::Value::Null);
        if content.is_null() {
            *content = "".into();
            filled = true;
        }
    }
    filled
}

/// A message without content (an assistant's tool calls) reaches the template as it is. Templates that
/// can't take it, because they add it to a string, are rendered again with an empty text.
pub fn render(
    text: &str,
    variables: &[(&str, Variables)],
    now_s: i64,
    limits: Limits,
) -> Result<String, Failure> {
    on_thread(|| {
        budget::start(limits.bytes, limits.time_ms);
        let prepared = source::prepare(text).map_err(Failure::invalid)?;
        let mut context = context(variables)?;
        let compiled = compile(&prepared)?;
        let env = environment(now_s, limits);
        rename_developers(&mut context, &prepared);
        match run(&env, &compiled, &context) {
            Err(failure)
                if matches!(failure.kind, FailureKind::Invalid | FailureKind::Raised)
                    && fill_contents(&mut context) =>
            {
                run(&env, &compiled, &context)
            }
            ended => ended,
        }
    })
}

fn run(env: &Environment, (code, blocks): &Compiled, context: &Context) -> Result<String, Failure> {
    let mut out = String::new();
    let mut output = make_string_output(&mut out);
    let root = Value::from_serialize(context);
    let ended = Vm::new(env).eval(code, root, blocks, &mut output, AutoEscape::None).map(|_| ());
    drop(output);
    ended.map(|_| out).map_err(|e| failure_of(&e))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str, messages: &str) -> Result<String, Failure> {
        let limits = Limits { steps: 1_000_000, bytes: 1 << 26, time_ms: 10_000 };
        render(template, &[("messages", Variables::Json(messages.as_bytes()))], 0, limits)
    }

    #[test]
    fn a_panic_is_a_failure_without_a_path() {
        quiet_panics();
        let failure = on_thread::<()>(|| panic!("index out of bounds")).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid);
        assert!(failure.message.contains("index out of bounds (template.rs:"), "{failure:?}");
        assert!(!failure.message.contains(['/', '\\']), "{failure:?}");
    }

    #[test]
    fn developers_are_system_unless_the_template_names_them() {
        let messages = r#"[{"role": "developer", "content": "x"}, {"role": "ipython"}]"#;
        let roles = "{% for m in messages %}{{ m.role }} {% endfor %}";
        assert_eq!(rendered(roles, messages).unwrap(), "system ipython ");
        let text = format!("{roles}developer");
        assert_eq!(rendered(&text, messages).unwrap(), "system ipython developer");
        let named = format!("{roles}{{{{ messages[0].role == \"developer\" }}}}");
        assert_eq!(rendered(&named, messages).unwrap(), "developer ipython True");
    }

    #[test]
    fn null_contents_are_null_and_empty_where_that_fails() {
        let messages = r#"[{"role": "assistant", "content": null}, {"role": "assistant"}]"#;
        let shown = "{% for m in messages %}{{ m.content is none }} {{ m.content is defined }};{% endfor %}";
        assert_eq!(rendered(shown, messages).unwrap(), "True True;False False;");
        let added = "{% for m in messages %}{{ '<' + m['content'] + '>' }}{% endfor %}";
        assert_eq!(rendered(added, messages).unwrap(), "<><>");
        let raised = "{% for m in messages %}{% if m.content is not string %}\
                      {{ raise_exception('no text') }}{% endif %}ok{% endfor %}";
        assert_eq!(rendered(raised, messages).unwrap(), "okok");
        let failure = rendered("{{ messages[0].content + 5 }}", messages).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid);
    }
}
