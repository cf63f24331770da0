//! Rewrites a parsed template so that every operation goes through our own functions, which follow
//! Python and keep within the budget: `a ~ b` becomes `__op(a, 7, b)`, `{}.items()` finds the method
//! before a key of that name, list and map literals are measured, and raw text is written like
//! any other value.

use crate::pyops;
use minijinja::machinery::ast::*;
use minijinja::machinery::Span;
use minijinja::Value;

pub const OP: &str = "__sixfold_op";
pub const METHOD: &str = "__sixfold_method";
pub const SHAPE: &str = "__sixfold_shape";
pub const DONE: &str = "__sixfold_done";

pub const ATTRIBUTE: &str = "__sixfold_attribute";
pub const ITEM: &str = "__sixfold_item";
pub const ITERABLE: &str = "__sixfold_iterable";

/// What a dict of Python has beside its keys: `d.items` is a method whatever keys there are, and
/// `d["items"]` is one where there is no such key.
const DICT_METHODS: [&str; 11] = [
    "items", "keys", "values", "get", "copy", "clear", "fromkeys", "pop", "popitem", "setdefault",
    "update",
];
/// Calls that the compiler treats by name.
const SPECIAL_CALLS: [&str; 3] = ["loop", "caller", "super"];

type R<T> = Result<T, String>;

fn call<'a>(name: &'static str, args: Vec<CallArg<'a>>, span: Span) -> Expr<'a> {
    let callee = Expr::Var(Spanned::new(Var { id: name }, span));
    Expr::Call(Spanned::new(Call { expr: callee, args }, span))
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(Const { value }, span))
}

pub fn stmt<'a>(node: &Stmt<'a>) -> R<Stmt<'a>> {
    Ok(match node {
        Stmt::Template(n) => {
            Stmt::Template(Spanned::new(Template { children: body(&n.children)? }, n.span()))
        }
        Stmt::EmitExpr(n) => {
            let expr = match &n.expr {
                Expr::Call(c) if is_special(c) => special_call(c)?,
                other => expr(other)?,
            };
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, n.span()))
        }
        Stmt::EmitRaw(n) => {
            let expr = constant(Value::from(n.raw), n.span());
            Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, n.span()))
        }
        Stmt::ForLoop(n) => Stmt::ForLoop(Spanned::new(
            ForLoop {
                target: target(&n.target)?,
                iter: call(ITERABLE, vec![CallArg::Pos(expr(&n.iter)?)], n.span()),
                filter_expr: n.filter_expr.as_ref().map(expr).transpose()?,
                recursive: n.recursive,
                body: body(&n.body)?,
                else_body: body(&n.else_body)?,
            },
            n.span(),
        )),
        Stmt::IfCond(n) => Stmt::IfCond(Spanned::new(
            IfCond {
                expr: expr(&n.expr)?,
                true_body: body(&n.true_body)?,
                false_body: body(&n.false_body)?,
            },
            n.span(),
        )),
        Stmt::WithBlock(n) => {
            let assign = |(t, e): &(Expr<'a>, Expr<'a>)| Ok((target(t)?, expr(e)?));
            let assignments = n.assignments.iter().map(assign).collect::<R<_>>()?;
            Stmt::WithBlock(Spanned::new(WithBlock { assignments, body: body(&n.body)? }, n.span()))
        }
        Stmt::Set(n) => Stmt::Set(Spanned::new(
            Set { target: target(&n.target)?, expr: expr(&n.expr)? },
            n.span(),
        )),
        Stmt::SetBlock(n) => Stmt::SetBlock(Spanned::new(
            SetBlock {
                target: target(&n.target)?,
                filter: n.filter.as_ref().map(filter_chain).transpose()?,
                body: body(&n.body)?,
            },
            n.span(),
        )),
        Stmt::AutoEscape(n) => Stmt::AutoEscape(Spanned::new(
            AutoEscape { enabled: expr(&n.enabled)?, body: body(&n.body)? },
            n.span(),
        )),
        Stmt::FilterBlock(n) => Stmt::FilterBlock(Spanned::new(
            FilterBlock { filter: filter_chain(&n.filter)?, body: body(&n.body)? },
            n.span(),
        )),
        Stmt::Block(n) => Stmt::Block(Spanned::new(
            Block { name: n.name, required: n.required, body: body(&n.body)? },
            n.span(),
        )),
        Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
            return Err("a chat template can't use other templates".into());
        }
        Stmt::Macro(n) => Stmt::Macro(Spanned::new(macro_decl(n)?, n.span())),
        Stmt::CallBlock(n) => Stmt::CallBlock(Spanned::new(
            CallBlock {
                call: Spanned::new(plain_call(&n.call)?, n.call.span()),
                macro_decl: Spanned::new(macro_decl(&n.macro_decl)?, n.macro_decl.span()),
            },
            n.span(),
        )),
        Stmt::Continue(n) => Stmt::Continue(Spanned::new(Continue, n.span())),
        Stmt::Break(n) => Stmt::Break(Spanned::new(Break, n.span())),
        Stmt::Do(n) => Stmt::Do(Spanned::new(
            Do { call: Spanned::new(plain_call(&n.call)?, n.call.span()) },
            n.span(),
        )),
    })
}

fn body<'a>(nodes: &[Stmt<'a>]) -> R<Vec<Stmt<'a>>> {
    nodes.iter().map(stmt).collect()
}

fn macro_decl<'a>(n: &Macro<'a>) -> R<Macro<'a>> {
    Ok(Macro {
        name: n.name,
        args: n.args.iter().map(target).collect::<R<_>>()?,
        defaults: n.defaults.iter().map(expr).collect::<R<_>>()?,
        body: body(&n.body)?,
    })
}

/// What may stand left of `=`: kept as it is.
fn target<'a>(node: &Expr<'a>) -> R<Expr<'a>> {
    Ok(match node {
        Expr::Var(n) => Expr::Var(Spanned::new(Var { id: n.id }, n.span())),
        Expr::GetAttr(n) => Expr::GetAttr(Spanned::new(
            GetAttr { expr: target(&n.expr)?, name: n.name },
            n.span(),
        )),
        Expr::List(n) => {
            let items = n.items.iter().map(target).collect::<R<_>>()?;
            Expr::List(Spanned::new(List { items }, n.span()))
        }
        other => expr(other)?,
    })
}

/// `upper|trim` of a block: the innermost filter has no operand, so the results stay bare.
fn filter_chain<'a>(node: &Expr<'a>) -> R<Expr<'a>> {
    match node {
        Expr::Filter(n) => Ok(Expr::Filter(Spanned::new(
            Filter {
                name: n.name,
                expr: n.expr.as_ref().map(filter_chain).transpose()?,
                args: args(&n.args)?,
            },
            n.span(),
        ))),
        other => expr(other),
    }
}

fn args<'a>(nodes: &[CallArg<'a>]) -> R<Vec<CallArg<'a>>> {
    let arg = |node: &CallArg<'a>| {
        Ok(match node {
            CallArg::Pos(e) => CallArg::Pos(expr(e)?),
            CallArg::Kwarg(name, e) => CallArg::Kwarg(name, expr(e)?),
            CallArg::PosSplat(e) => CallArg::PosSplat(expr(e)?),
            CallArg::KwargSplat(e) => CallArg::KwargSplat(expr(e)?),
        })
    };
    nodes.iter().map(arg).collect()
}

fn is_special(n: &Call) -> bool {
    matches!(&n.expr, Expr::Var(v) if SPECIAL_CALLS.contains(&v.id))
}

fn special_call<'a>(n: &Spanned<Call<'a>>) -> R<Expr<'a>> {
    Ok(Expr::Call(Spanned::new(plain_call(n)?, n.span())))
}

fn plain_call<'a>(n: &Call<'a>) -> R<Call<'a>> {
    let callee = match &n.expr {
        Expr::GetAttr(g) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: expr(&g.expr)?, name: g.name }, g.span()))
        }
        other => expr(other)?,
    };
    Ok(Call { expr: callee, args: args(&n.args)? })
}

fn call_expr<'a>(n: &Spanned<Call<'a>>) -> R<Expr<'a>> {
    if is_special(n) {
        return special_call(n);
    }
    let span = n.span();
    if let Expr::GetAttr(g) = &n.expr {
        if DICT_METHODS.contains(&g.name) {
            let mut all = vec![
                CallArg::Pos(expr(&g.expr)?),
                CallArg::Pos(constant(Value::from(g.name), span)),
            ];
            all.extend(args(&n.args)?);
            return Ok(call(METHOD, all, span));
        }
    }
    Ok(done(special_call(n)?, span))
}

fn done<'a>(inner: Expr<'a>, span: Span) -> Expr<'a> {
    call(DONE, vec![CallArg::Pos(inner)], span)
}

fn binary<'a>(op: BinOpKind, left: Expr<'a>, right: Expr<'a>, span: Span) -> Expr<'a> {
    match pyops::code(op) {
        Some(code) => {
            let code = constant(Value::from(code), span);
            call(OP, vec![CallArg::Pos(left), CallArg::Pos(code), CallArg::Pos(right)], span)
        }
        None => Expr::BinOp(Spanned::new(BinOp { op, left, right }, span)),
    }
}

/// `a < b < c`: one call with all operands, each read once.
fn compare<'a>(n: &Spanned<Compare<'a>>) -> R<Expr<'a>> {
    let mut all = vec![CallArg::Pos(expr(&n.expr)?)];
    for link in &n.ops {
        let op = match link.op {
            CompareOpKind::Eq => Some(BinOpKind::Eq),
            CompareOpKind::Ne => Some(BinOpKind::Ne),
            CompareOpKind::Lt => Some(BinOpKind::Lt),
            CompareOpKind::Lte => Some(BinOpKind::Lte),
            CompareOpKind::Gt => Some(BinOpKind::Gt),
            CompareOpKind::Gte => Some(BinOpKind::Gte),
            CompareOpKind::In => Some(BinOpKind::In),
            CompareOpKind::NotIn => None,
        };
        let code = op.and_then(pyops::code).unwrap_or(pyops::NOT_IN);
        all.push(CallArg::Pos(constant(Value::from(code), n.span())));
        all.push(CallArg::Pos(expr(&link.expr)?));
    }
    Ok(call(OP, all, n.span()))
}

fn named<'a>(function: &'static str, of: &Expr<'a>, name: &str, span: Span) -> R<Expr<'a>> {
    let name = CallArg::Pos(constant(Value::from(name), span));
    Ok(call(function, vec![CallArg::Pos(expr(of)?), name], span))
}

fn dict_method_name(node: &Expr) -> Option<&'static str> {
    let Expr::Const(n) = node else { return None };
    DICT_METHODS.into_iter().find(|m| n.value.as_str() == Some(*m))
}

pub fn expr<'a>(node: &Expr<'a>) -> R<Expr<'a>> {
    let optional = |e: &Option<Expr<'a>>| e.as_ref().map(expr).transpose();
    Ok(match node {
        Expr::Var(n) => Expr::Var(Spanned::new(Var { id: n.id }, n.span())),
        Expr::Const(n) => constant(n.value.clone(), n.span()),
        Expr::Slice(n) => Expr::Slice(Spanned::new(
            Slice {
                expr: expr(&n.expr)?,
                start: optional(&n.start)?,
                stop: optional(&n.stop)?,
                step: optional(&n.step)?,
            },
            n.span(),
        )),
        Expr::UnaryOp(n) => {
            let op = match n.op {
                UnaryOpKind::Not => UnaryOpKind::Not,
                UnaryOpKind::Neg => UnaryOpKind::Neg,
            };
            Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: expr(&n.expr)? }, n.span()))
        }
        Expr::BinOp(n) => binary(n.op, expr(&n.left)?, expr(&n.right)?, n.span()),
        Expr::Compare(n) => compare(n)?,
        Expr::IfExpr(n) => Expr::IfExpr(Spanned::new(
            IfExpr {
                test_expr: expr(&n.test_expr)?,
                true_expr: expr(&n.true_expr)?,
                false_expr: optional(&n.false_expr)?,
            },
            n.span(),
        )),
        Expr::Filter(n) => {
            let filter = Filter { name: n.name, expr: optional(&n.expr)?, args: args(&n.args)? };
            done(Expr::Filter(Spanned::new(filter, n.span())), n.span())
        }
        Expr::Test(n) => {
            let test = Test { name: n.name, expr: expr(&n.expr)?, args: args(&n.args)? };
            done(Expr::Test(Spanned::new(test, n.span())), n.span())
        }
        Expr::GetAttr(n) if DICT_METHODS.contains(&n.name) => {
            named(ATTRIBUTE, &n.expr, n.name, n.span())?
        }
        Expr::GetAttr(n) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: expr(&n.expr)?, name: n.name }, n.span()))
        }
        Expr::GetItem(n) if dict_method_name(&n.subscript_expr).is_some() => {
            let name = dict_method_name(&n.subscript_expr).unwrap_or("");
            named(ITEM, &n.expr, name, n.span())?
        }
        Expr::GetItem(n) => Expr::GetItem(Spanned::new(
            GetItem { expr: expr(&n.expr)?, subscript_expr: expr(&n.subscript_expr)? },
            n.span(),
        )),
        Expr::Call(n) => call_expr(n)?,
        Expr::List(n) => {
            let items = n.items.iter().map(expr).collect::<R<_>>()?;
            let list = Expr::List(Spanned::new(List { items }, n.span()));
            call(SHAPE, vec![CallArg::Pos(list)], n.span())
        }
        Expr::Map(n) => {
            let map = Map {
                keys: n.keys.iter().map(expr).collect::<R<_>>()?,
                values: n.values.iter().map(expr).collect::<R<_>>()?,
            };
            let map = Expr::Map(Spanned::new(map, n.span()));
            call(SHAPE, vec![CallArg::Pos(map)], n.span())
        }
    })
}
