//! Test of whether a chat template writes each message independently, so that for a chat's next request only the last
//! messages have to be rendered.
//!
//! The test reads the template's syntax tree once, when the template is compiled. A template passes if messages are
//! used in two ways only: one loop over all of them, and the first one by its index. The output of the loop's body for
//! a message may then depend on the message and its neighbours, on its being the first or last, on its index being
//! even, and on values from outside the loop; nothing is carried from one message to the next. Unknown syntax counts as
//! dependent.

use minijinja::Error;
use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, ForLoop, Stmt};
use minijinja::machinery::parse;

/// Template functions whose result depends only on their arguments.
const PURE: [&str; 4] = ["raise_exception", "range", "dict", "namespace"];

/// True if a template writes each message independently of all others except its neighbours.
pub(super) fn is_local(source: &str) -> Result<bool, Error> {
    let template = parse(source, "chat", super::syntax::syntax())?;
    let mut reader = Reader { place: Place::Around, over: false, within: false, captured: false };
    Ok(reader.statement(&template) && reader.over)
}

/// Innermost loop around a position in a template's source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No loop: the position is outside of all loops.
    Around,
    Messages,
    Other,
}

struct Reader {
    place: Place,
    /// True once the loop over the messages has begun.
    over: bool,
    /// True while the loop over the messages is being read.
    within: bool,
    /// True if the output at this position is assigned to a variable instead of being written.
    captured: bool,
}

impl Reader {
    fn statements(&mut self, statements: &[Stmt<'_>]) -> bool {
        statements.iter().all(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> bool {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitRaw(_) => true,
            Stmt::EmitExpr(emit) => self.reads(&emit.expr),
            Stmt::IfCond(condition) => {
                self.reads(&condition.expr)
                    && self.statements(&condition.true_body)
                    && self.statements(&condition.false_body)
            }
            Stmt::ForLoop(each) if is_named(&each.iter, "messages") => self.over_messages(each),
            Stmt::ForLoop(each) => {
                if each.recursive
                    || !self.sets(&each.target)
                    || !self.reads(&each.iter)
                    || each.filter_expr.as_ref().is_some_and(|filter| !self.reads(filter))
                {
                    return false;
                }
                let before = std::mem::replace(&mut self.place, Place::Other);
                let is_fine = self.statements(&each.body);
                self.place = before;
                is_fine && self.statements(&each.else_body)
            }
            Stmt::WithBlock(block) => {
                let mut assigned = block.assignments.iter();
                assigned.all(|(target, value)| self.sets(target) && self.reads(value)) && self.statements(&block.body)
            }
            Stmt::Set(set) => self.sets(&set.target) && self.reads(&set.expr),
            Stmt::SetBlock(set) => {
                let filter = set.filter.as_ref();
                self.sets(&set.target) && filter.is_none_or(|filter| self.reads(filter)) && self.captures(&set.body)
            }
            Stmt::FilterBlock(block) => self.reads(&block.filter) && self.captures(&block.body),
            Stmt::Continue(_) => true,
            Stmt::Break(_) => self.place == Place::Other,
            _ => false,
        }
    }

    fn over_messages(&mut self, each: &ForLoop<'_>) -> bool {
        if self.over || self.captured || self.place != Place::Around {
            return false;
        }
        if each.recursive || each.filter_expr.is_some() || !each.else_body.is_empty() || !self.sets(&each.target) {
            return false;
        }
        (self.over, self.within, self.place) = (true, true, Place::Messages);
        let is_fine = self.statements(&each.body);
        (self.within, self.place) = (false, Place::Around);
        is_fine
    }

    fn captures(&mut self, body: &[Stmt<'_>]) -> bool {
        let before = std::mem::replace(&mut self.captured, true);
        let is_fine = self.statements(body);
        self.captured = before;
        is_fine
    }

    /// True if a template may assign to `target` and still write messages independently: variables of the loop over
    /// messages are reset with each message, fields of objects are not.
    fn sets(&self, target: &Expr<'_>) -> bool {
        match target {
            Expr::Var(var) => !matches!(var.id, "messages" | "loop"),
            Expr::GetAttr(field) => !self.within && self.sets(&field.expr),
            Expr::List(list) => list.items.iter().all(|item| self.sets(item)),
            Expr::Tuple(tuple) => tuple.items.iter().all(|item| self.sets(item)),
            _ => false,
        }
    }

    fn reads(&self, expression: &Expr<'_>) -> bool {
        let all = |items: &[Expr<'_>]| items.iter().all(|item| self.reads(item));
        let maybe = |item: &Option<Expr<'_>>| item.as_ref().is_none_or(|item| self.reads(item));
        match expression {
            Expr::Const(_) => true,
            Expr::Var(var) => !matches!(var.id, "messages" | "loop"),
            Expr::GetAttr(field) if is_named(&field.expr, "loop") => match self.place {
                Place::Other => true,
                Place::Messages => matches!(field.name, "first" | "last" | "previtem"),
                Place::Around => false,
            },
            Expr::GetAttr(field) => self.reads(&field.expr),
            Expr::GetItem(item) if is_named(&item.expr, "messages") => self.numbers(&item.subscript_expr),
            Expr::GetItem(item) => self.reads(&item.expr) && self.reads(&item.subscript_expr),
            Expr::BinOp(both) => {
                let is_parity = matches!(both.op, BinOpKind::Rem) && is_number(&both.right, 2);
                let is_first = matches!(both.op, BinOpKind::Eq | BinOpKind::Ne) && is_first(&both.left, &both.right);
                (self.place == Place::Messages && (is_parity && place(&both.left).is_some() || is_first))
                    || (self.reads(&both.left) && self.reads(&both.right))
            }
            Expr::Compare(compare) => {
                let is_first = match &compare.ops[..] {
                    [one] if matches!(one.op, CompareOpKind::Eq | CompareOpKind::Ne) => {
                        is_first(&compare.expr, &one.expr)
                    }
                    _ => false,
                };
                (self.place == Place::Messages && is_first)
                    || (self.reads(&compare.expr) && compare.ops.iter().all(|one| self.reads(&one.expr)))
            }
            Expr::Slice(slice) => {
                self.reads(&slice.expr) && maybe(&slice.start) && maybe(&slice.stop) && maybe(&slice.step)
            }
            Expr::UnaryOp(one) => self.reads(&one.expr),
            Expr::IfExpr(choice) => {
                self.reads(&choice.test_expr) && self.reads(&choice.true_expr) && maybe(&choice.false_expr)
            }
            Expr::Filter(filter) => maybe(&filter.expr) && self.arguments(&filter.args),
            Expr::Test(test) => self.reads(&test.expr) && self.arguments(&test.args),
            Expr::Call(call) => self.calls(call),
            Expr::List(list) => all(&list.items),
            Expr::Tuple(tuple) => all(&tuple.items),
            Expr::Map(map) => all(&map.keys) && all(&map.values),
        }
    }

    fn calls(&self, call: &Call<'_>) -> bool {
        let is_pure = match &call.expr {
            Expr::Var(var) => PURE.contains(&var.id),
            // A method of a value; values are immutable.
            Expr::GetAttr(method) => self.reads(&call.expr) && !is_named(&method.expr, "loop"),
            _ => false,
        };
        is_pure && self.arguments(&call.args)
    }

    fn arguments(&self, arguments: &[CallArg<'_>]) -> bool {
        arguments.iter().all(|argument| match argument {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.reads(value),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
        })
    }

    /// True if a template may use `number` as an index of messages and still write them independently: 0, and in the
    /// loop the indexes of the neighbours.
    fn numbers(&self, number: &Expr<'_>) -> bool {
        if is_number(number, 0) {
            return true;
        }
        if self.place != Place::Messages {
            return false;
        }
        match number {
            Expr::BinOp(both) if matches!(both.op, BinOpKind::Add | BinOpKind::Sub) => {
                place(&both.left) == Some(0) && is_number(&both.right, 1)
            }
            number => place(number).is_some(),
        }
    }
}

fn is_named(expression: &Expr<'_>, name: &str) -> bool {
    matches!(expression, Expr::Var(var) if var.id == name)
}

fn is_number(expression: &Expr<'_>, number: i64) -> bool {
    expression.as_const().and_then(|value| value.is_integer().then(|| value.as_i64())?) == Some(number)
}

/// Initial value of the loop's counter (0 or 1), if the expression is a counter of the loop; else `None`.
fn place(expression: &Expr<'_>) -> Option<i64> {
    match expression {
        Expr::GetAttr(field) if is_named(&field.expr, "loop") => match field.name {
            "index0" => Some(0),
            "index" => Some(1),
            _ => None,
        },
        _ => None,
    }
}

/// True if the comparison of `left` and `right` tests for the first message of the loop.
fn is_first(left: &Expr<'_>, right: &Expr<'_>) -> bool {
    place(left).is_some_and(|first| is_number(right, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_message_is_written_by() {
        for (source, expected) in [
            ("{% for m in messages %}{{ m.role + m['content'] }}{% endfor %}", true),
            (
                "{{ messages[0].content }}{% for m in messages %}{% if not loop.first %}{{ m }}{% endif %}{% endfor %}",
                true,
            ),
            (
                "{% for m in messages %}{% if loop.last or messages[loop.index0 + 1].role %}x{% endif %}{% endfor %}",
                true,
            ),
            (
                "{% for m in messages %}{% if loop.index0 == 0 or messages[loop.index0 - 1].role %}x{% endif %}{% endfor %}",
                true,
            ),
            (
                "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}x{% endif %}{% endfor %}",
                true,
            ),
            (
                "{% for m in messages %}{% set x = m.a %}{% for c in x %}{{ loop.index0 }}{% break %}{% endfor %}{% endfor %}",
                true,
            ),
            ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{% for m in messages %}{{ ns.a }}{% endfor %}", true),
            ("{% for m in messages %}{{ m.content.split('x')[-1] | trim }}{% endfor %}{{ messages[0] }}", true),
            ("{% if tools %}{% for m in messages %}{{ m }}{% endfor %}{% endif %}", true),
            // Anything computed over all messages.
            ("{{ messages[0].content }}", false),
            ("{% for m in messages %}{{ m }}{% endfor %}{% for m in messages %}{{ m }}{% endfor %}", false),
            ("{{ messages | length }}{% for m in messages %}{{ m }}{% endfor %}", false),
            ("{% for m in messages %}{{ messages | tojson }}{% endfor %}", false),
            ("{% for m in messages %}{{ messages[-1] }}{% endfor %}", false),
            ("{% for m in messages %}{{ m }}{% endfor %}{{ messages[-1] }}", false),
            ("{% for m in messages %}{{ messages[1] }}{% endfor %}", false),
            ("{% for m in messages %}{{ messages[loop.index0 + 2] }}{% endfor %}", false),
            ("{% for m in messages %}{{ messages[loop.index + 1] }}{% endfor %}", false),
            ("{% for m in messages %}{{ messages[m.at] }}{% endfor %}", false),
            ("{% set all = messages %}{% for m in all %}{{ m }}{% endfor %}", false),
            ("{% for m in messages[1:] %}{{ m }}{% endfor %}", false),
            ("{% for m in messages if m.role %}{{ m }}{% endfor %}", false),
            ("{% for m in messages recursive %}{{ m }}{% endfor %}", false),
            ("{% for m in messages %}{{ m }}{% else %}x{% endfor %}", false),
            ("{% for m in messages %}{{ loop.index0 }}{% endfor %}", false),
            ("{% for m in messages %}{{ loop.index0 % 3 }}{% endfor %}", false),
            ("{% for m in messages %}{{ loop.index0 == 1 }}{% endfor %}", false),
            ("{% for m in messages %}{{ loop.length }}{% endfor %}", false),
            ("{% for m in messages %}{{ loop.revindex }}{% endfor %}", false),
            ("{% for m in messages %}{{ loop.nextitem }}{% endfor %}", false),
            ("{% for m in messages %}{{ loop['index'] }}{% endfor %}", false),
            ("{% for m in messages %}{% if loop.changed(m.role) %}x{% endif %}{% endfor %}", false),
            ("{% for m in messages %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}", false),
            ("{% for m in messages %}{% set l = loop %}{{ l.index }}{% endfor %}", false),
            ("{% for m in messages %}{% break %}{% endfor %}", false),
            ("{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}", false),
            ("{% for m in messages %}{% for c in m.a %}{{ messages[loop.index0] }}{% endfor %}{% endfor %}", false),
            ("{% for m in messages %}{% for c in m.a %}{% set m.x = 1 %}{% endfor %}{% endfor %}", false),
            ("{% for a in tools %}{% for m in messages %}{{ m }}{% endfor %}{% endfor %}", false),
            ("{% set x %}{% for m in messages %}{{ m }}{% endfor %}{% endset %}{{ x }}", false),
            ("{% macro f(m) %}{{ m }}{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}", false),
            ("{{ strftime_now('%Y') }}{% for m in messages %}{{ m }}{% endfor %}", false),
            ("{% for messages in messages %}{{ messages }}{% endfor %}", false),
            ("{% set messages = tools %}{% for m in messages %}{{ m }}{% endfor %}", false),
            ("{% with messages = tools %}{% for m in messages %}{{ m }}{% endfor %}{% endwith %}", false),
            ("{% for m in messages %}{{ range(*m.a) }}{% endfor %}", false),
        ] {
            assert_eq!(is_local(source).unwrap(), expected, "{source}");
        }
    }
}
