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
pub const SLICE: &str = "__sixfold_slice";
pub const NEG: &str = "__sixfold_neg";
pub const TUPLE: &str = "__sixfold_tuple";
pub const DICT: &str = "__sixfold_dict";
pub const ITERABLE: &str = "__sixfold_iterable";

/// What a dict of Python has beside its keys: `d.items` is a method whatever keys there are, and
/// `d["items"]` is one where there is no such key.
const DICT_METHODS: [&str; 11] = [
    "items",
    "keys",
    "values",
    "get",
    "copy",
    "clear",
    "fromkeys",
    "pop",
    "popitem",
    "setdefault",
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

fn is_special(n: &Call) -> bool {
    matches!(&n.expr, Expr::Var(v) if SPECIAL_CALLS.contains(&v.id))
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

fn named<'a>(function: &'static str, of: Expr<'a>, name: &str, span: Span) -> Expr<'a> {
    let name = CallArg::Pos(constant(Value::from(name), span));
    call(function, vec![CallArg::Pos(of), name], span)
}

fn is_text(node: &Expr) -> bool {
    matches!(node, Expr::Const(n) if n.value.as_str().is_some())
}

/// Whether a minus before a chain is still to be applied.
enum Sign {
    Plus,
    Minus,
}

/// `source` is the text that the tree was parsed from.
pub struct Rewriter<'s> {
    pub source: &'s str,
}

impl Rewriter<'_> {
    pub fn stmt<'a>(&self, node: &Stmt<'a>) -> R<Stmt<'a>> {
        Ok(match node {
            Stmt::Template(n) => Stmt::Template(Spanned::new(
                Template { children: self.body(&n.children)? },
                n.span(),
            )),
            Stmt::EmitExpr(n) => {
                let expr = match &n.expr {
                    Expr::Call(c) if is_special(c) => self.special_call(c)?,
                    other => self.expr(other)?,
                };
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, n.span()))
            }
            Stmt::EmitRaw(n) => {
                let expr = constant(Value::from(n.raw), n.span());
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, n.span()))
            }
            Stmt::ForLoop(n) => Stmt::ForLoop(Spanned::new(
                ForLoop {
                    target: self.target(&n.target)?,
                    iter: call(ITERABLE, vec![CallArg::Pos(self.expr(&n.iter)?)], n.span()),
                    filter_expr: n.filter_expr.as_ref().map(|n| self.expr(n)).transpose()?,
                    recursive: n.recursive,
                    body: self.body(&n.body)?,
                    else_body: self.body(&n.else_body)?,
                },
                n.span(),
            )),
            Stmt::IfCond(n) => Stmt::IfCond(Spanned::new(
                IfCond {
                    expr: self.expr(&n.expr)?,
                    true_body: self.body(&n.true_body)?,
                    false_body: self.body(&n.false_body)?,
                },
                n.span(),
            )),
            Stmt::WithBlock(n) => {
                let assign = |(t, e): &(Expr<'a>, Expr<'a>)| Ok((self.target(t)?, self.expr(e)?));
                let assignments = n.assignments.iter().map(assign).collect::<R<_>>()?;
                Stmt::WithBlock(Spanned::new(
                    WithBlock { assignments, body: self.body(&n.body)? },
                    n.span(),
                ))
            }
            Stmt::Set(n) => Stmt::Set(Spanned::new(
                Set { target: self.target(&n.target)?, expr: self.expr(&n.expr)? },
                n.span(),
            )),
            Stmt::SetBlock(n) => Stmt::SetBlock(Spanned::new(
                SetBlock {
                    target: self.target(&n.target)?,
                    filter: n.filter.as_ref().map(|n| self.filter_chain(n)).transpose()?,
                    body: self.body(&n.body)?,
                },
                n.span(),
            )),
            Stmt::AutoEscape(n) => Stmt::AutoEscape(Spanned::new(
                AutoEscape { enabled: self.expr(&n.enabled)?, body: self.body(&n.body)? },
                n.span(),
            )),
            Stmt::FilterBlock(n) => Stmt::FilterBlock(Spanned::new(
                FilterBlock { filter: self.filter_chain(&n.filter)?, body: self.body(&n.body)? },
                n.span(),
            )),
            Stmt::Block(n) => Stmt::Block(Spanned::new(
                Block { name: n.name, required: n.required, body: self.body(&n.body)? },
                n.span(),
            )),
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                return Err("a chat template can't use other templates".into());
            }
            Stmt::Macro(n) => Stmt::Macro(Spanned::new(self.macro_decl(n)?, n.span())),
            Stmt::CallBlock(n) => Stmt::CallBlock(Spanned::new(
                CallBlock {
                    call: Spanned::new(self.plain_call(&n.call)?, n.call.span()),
                    macro_decl: Spanned::new(self.macro_decl(&n.macro_decl)?, n.macro_decl.span()),
                },
                n.span(),
            )),
            Stmt::Continue(n) => Stmt::Continue(Spanned::new(Continue, n.span())),
            Stmt::Break(n) => Stmt::Break(Spanned::new(Break, n.span())),
            Stmt::Do(n) => Stmt::Do(Spanned::new(
                Do { call: Spanned::new(self.plain_call(&n.call)?, n.call.span()) },
                n.span(),
            )),
        })
    }

    fn body<'a>(&self, nodes: &[Stmt<'a>]) -> R<Vec<Stmt<'a>>> {
        nodes.iter().map(|n| self.stmt(n)).collect()
    }

    fn macro_decl<'a>(&self, n: &Macro<'a>) -> R<Macro<'a>> {
        Ok(Macro {
            name: n.name,
            args: n.args.iter().map(|n| self.target(n)).collect::<R<_>>()?,
            defaults: n.defaults.iter().map(|n| self.expr(n)).collect::<R<_>>()?,
            body: self.body(&n.body)?,
        })
    }

    /// What may stand left of `=`: kept as it is.
    fn target<'a>(&self, node: &Expr<'a>) -> R<Expr<'a>> {
        Ok(match node {
            Expr::Var(n) => Expr::Var(Spanned::new(Var { id: n.id }, n.span())),
            Expr::GetAttr(n) => Expr::GetAttr(Spanned::new(
                GetAttr { expr: self.target(&n.expr)?, name: n.name },
                n.span(),
            )),
            Expr::List(n) => {
                let items = n.items.iter().map(|n| self.target(n)).collect::<R<_>>()?;
                Expr::List(Spanned::new(List { items }, n.span()))
            }
            other => self.expr(other)?,
        })
    }

    /// `upper|trim` of a block: the innermost filter has no operand, so the results stay bare.
    fn filter_chain<'a>(&self, node: &Expr<'a>) -> R<Expr<'a>> {
        match node {
            Expr::Filter(n) => Ok(Expr::Filter(Spanned::new(
                Filter {
                    name: n.name,
                    expr: n.expr.as_ref().map(|n| self.filter_chain(n)).transpose()?,
                    args: self.args(&n.args)?,
                },
                n.span(),
            ))),
            other => self.expr(other),
        }
    }

    fn args<'a>(&self, nodes: &[CallArg<'a>]) -> R<Vec<CallArg<'a>>> {
        let arg = |node: &CallArg<'a>| {
            Ok(match node {
                CallArg::Pos(e) => CallArg::Pos(self.expr(e)?),
                CallArg::Kwarg(name, e) => CallArg::Kwarg(name, self.expr(e)?),
                CallArg::PosSplat(e) => CallArg::PosSplat(self.expr(e)?),
                CallArg::KwargSplat(e) => CallArg::KwargSplat(self.expr(e)?),
            })
        };
        nodes.iter().map(arg).collect()
    }

    fn special_call<'a>(&self, n: &Spanned<Call<'a>>) -> R<Expr<'a>> {
        Ok(Expr::Call(Spanned::new(self.plain_call(n)?, n.span())))
    }

    fn plain_call<'a>(&self, n: &Call<'a>) -> R<Call<'a>> {
        let callee = match &n.expr {
            Expr::GetAttr(g) => Expr::GetAttr(Spanned::new(
                GetAttr { expr: self.expr(&g.expr)?, name: g.name },
                g.span(),
            )),
            other => self.expr(other)?,
        };
        Ok(Call { expr: callee, args: self.args(&n.args)? })
    }

    /// A chain of `.name`, `[key]`, `[a:b]` and `(…)`. In Jinja2 a minus before it negates its result,
    /// in minijinja what it starts with; the sign that is still to apply comes beside it.
    fn chain<'a>(&self, node: &Expr<'a>) -> R<(Expr<'a>, Sign)> {
        Ok(match node {
            Expr::GetAttr(n) => {
                let (of, sign) = self.base(&n.expr, n.span())?;
                let attr = match DICT_METHODS.contains(&n.name) {
                    true => named(ATTRIBUTE, of, n.name, n.span()),
                    false => {
                        Expr::GetAttr(Spanned::new(GetAttr { expr: of, name: n.name }, n.span()))
                    }
                };
                (attr, sign)
            }
            Expr::GetItem(n) => {
                let (of, sign) = self.base(&n.expr, n.span())?;
                let key = self.expr(&n.subscript_expr)?;
                (call(ITEM, vec![CallArg::Pos(of), CallArg::Pos(key)], n.span()), sign)
            }
            Expr::Slice(n) => {
                let (of, sign) = self.base(&n.expr, n.span())?;
                let mut all = vec![CallArg::Pos(of)];
                for bound in [&n.start, &n.stop, &n.step] {
                    all.push(CallArg::Pos(match bound {
                        Some(bound) => self.expr(bound)?,
                        None => constant(Value::from(()), n.span()),
                    }));
                }
                (call(SLICE, all, n.span()), sign)
            }
            Expr::Call(n) => self.call_expr(n)?,
            other => (self.expr(other)?, Sign::Plus),
        })
    }

    /// What a chain's link at `link` stands behind.
    fn base<'a>(&self, of: &Expr<'a>, link: Span) -> R<(Expr<'a>, Sign)> {
        match of {
            // In brackets, `(-a).b`, it starts later than the link.
            Expr::UnaryOp(n)
                if matches!(n.op, UnaryOpKind::Neg)
                    && n.span().start_offset == link.start_offset =>
            {
                Ok((self.expr(&n.expr)?, Sign::Minus))
            }
            other => self.chain(other),
        }
    }

    fn call_expr<'a>(&self, n: &Spanned<Call<'a>>) -> R<(Expr<'a>, Sign)> {
        let span = n.span();
        if is_special(n) {
            return Ok((self.special_call(n)?, Sign::Plus));
        }
        let (callee, sign) = match &n.expr {
            Expr::GetAttr(g) => {
                let (of, sign) = self.base(&g.expr, g.span())?;
                if DICT_METHODS.contains(&g.name) {
                    let mut all =
                        vec![CallArg::Pos(of), CallArg::Pos(constant(Value::from(g.name), span))];
                    all.extend(self.args(&n.args)?);
                    return Ok((call(METHOD, all, span), sign));
                }
                (Expr::GetAttr(Spanned::new(GetAttr { expr: of, name: g.name }, g.span())), sign)
            }
            other => self.base(other, span)?,
        };
        let made = Call { expr: callee, args: self.args(&n.args)? };
        Ok((done(Expr::Call(Spanned::new(made, span)), span), sign))
    }

    /// minijinja's tree has one node for `[a, b]`, `(a, b)` and `set x = a, b`.
    fn is_tuple(&self, n: &Spanned<List>) -> bool {
        let start = n.span().start_offset;
        let bracket = self.source.as_bytes().get(start as usize) == Some(&b'[');
        // Without brackets the node starts after its first comma.
        let bare = n.items.first().is_some_and(|item| item.span().start_offset <= start);
        !bracket || bare
    }

    /// `a < b < c`: one call with all operands, each read once.
    fn compare<'a>(&self, n: &Spanned<Compare<'a>>) -> R<Expr<'a>> {
        let mut all = vec![CallArg::Pos(self.expr(&n.expr)?)];
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
            all.push(CallArg::Pos(self.expr(&link.expr)?));
        }
        Ok(call(OP, all, n.span()))
    }

    pub fn expr<'a>(&self, node: &Expr<'a>) -> R<Expr<'a>> {
        let optional = |e: &Option<Expr<'a>>| e.as_ref().map(|n| self.expr(n)).transpose();
        Ok(match node {
            Expr::Var(n) => Expr::Var(Spanned::new(Var { id: n.id }, n.span())),
            Expr::Const(n) => constant(n.value.clone(), n.span()),
            Expr::UnaryOp(n) => match n.op {
                UnaryOpKind::Neg => call(NEG, vec![CallArg::Pos(self.expr(&n.expr)?)], n.span()),
                UnaryOpKind::Not => {
                    let op = UnaryOp { op: UnaryOpKind::Not, expr: self.expr(&n.expr)? };
                    Expr::UnaryOp(Spanned::new(op, n.span()))
                }
            },
            Expr::BinOp(n) => binary(n.op, self.expr(&n.left)?, self.expr(&n.right)?, n.span()),
            Expr::Compare(n) => self.compare(n)?,
            Expr::IfExpr(n) => Expr::IfExpr(Spanned::new(
                IfExpr {
                    test_expr: self.expr(&n.test_expr)?,
                    true_expr: self.expr(&n.true_expr)?,
                    false_expr: optional(&n.false_expr)?,
                },
                n.span(),
            )),
            Expr::Filter(n) => {
                let filter =
                    Filter { name: n.name, expr: optional(&n.expr)?, args: self.args(&n.args)? };
                done(Expr::Filter(Spanned::new(filter, n.span())), n.span())
            }
            Expr::Test(n) => {
                let test =
                    Test { name: n.name, expr: self.expr(&n.expr)?, args: self.args(&n.args)? };
                done(Expr::Test(Spanned::new(test, n.span())), n.span())
            }
            Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Slice(_) | Expr::Call(_) => {
                let (chain, sign) = self.chain(node)?;
                match sign {
                    Sign::Plus => chain,
                    Sign::Minus => call(NEG, vec![CallArg::Pos(chain)], node.span()),
                }
            }
            Expr::List(n) => {
                let items = n.items.iter().map(|n| self.expr(n)).collect::<R<_>>()?;
                let list = Expr::List(Spanned::new(List { items }, n.span()));
                let function = if self.is_tuple(n) { TUPLE } else { SHAPE };
                call(function, vec![CallArg::Pos(list)], n.span())
            }
            Expr::Map(n) if !n.keys.iter().all(is_text) => {
                let pairs = n.keys.iter().zip(&n.values).flat_map(|(k, v)| [k, v]);
                let items = pairs.map(|n| self.expr(n)).collect::<R<_>>()?;
                let list = Expr::List(Spanned::new(List { items }, n.span()));
                call(DICT, vec![CallArg::Pos(list)], n.span())
            }
            Expr::Map(n) => {
                let map = Map {
                    keys: n.keys.iter().map(|n| self.expr(n)).collect::<R<_>>()?,
                    values: n.values.iter().map(|n| self.expr(n)).collect::<R<_>>()?,
                };
                let map = Expr::Map(Spanned::new(map, n.span()));
                call(SHAPE, vec![CallArg::Pos(map)], n.span())
            }
        })
    }
}
