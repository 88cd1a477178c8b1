//! Forms of messages that a chat template accepts. A template accepts contents as lists of parts if it loops over the
//! content under any name. System messages after the first are tested by rendering, in the way of the engines.

use std::collections::HashSet;

use minijinja::machinery::ast::{Expr, Stmt};
use minijinja::machinery::parse;
use minijinja::{Environment, Error, Value};

use super::environment::{Clock, environment};
use super::syntax;
use crate::dialect::{Dialect, Engine};
use crate::messages::object;

/// True if a template accepts a message's content as a list of parts.
pub(super) fn wants_parts(source: &str) -> Result<bool, Error> {
    let template = parse(source, "chat", super::syntax::syntax())?;
    let mut found = Bindings::default();
    found.statement(&template);
    let lists = found.names_for(HashSet::from(["messages"]), None);
    let messages: HashSet<&str> = found
        .loops
        .iter()
        .filter(|(_, over)| reads(over, &lists, None))
        .filter_map(|(target, _)| match target {
            Expr::Var(var) => Some(var.id),
            _ => None,
        })
        .collect();
    let contents = found.names_for(HashSet::new(), Some(&messages));
    Ok(found.loops.iter().any(|(_, over)| reads(over, &contents, None) || reads(over, &messages, Some("content"))))
}

/// Loops and assignments found in the source of a chat template.
#[derive(Default)]
struct Bindings<'t, 's> {
    /// Loops in the template: the loop variable, and the expression looped over.
    loops: Vec<(&'t Expr<'s>, &'t Expr<'s>)>,
    /// Assignments in the template: the variable, and the assigned value.
    sets: Vec<(&'t Expr<'s>, &'t Expr<'s>)>,
}

impl<'t, 's> Bindings<'t, 's> {
    fn statements(&mut self, statements: &'t [Stmt<'s>]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &'t Stmt<'s>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::ForLoop(each) => {
                self.loops.push((&each.target, &each.iter));
                self.statements(&each.body);
                self.statements(&each.else_body);
            }
            Stmt::IfCond(condition) => {
                self.statements(&condition.true_body);
                self.statements(&condition.false_body);
            }
            Stmt::WithBlock(block) => {
                self.sets.extend(block.assignments.iter().map(|(target, value)| (target, value)));
                self.statements(&block.body);
            }
            Stmt::Set(set) => self.sets.push((&set.target, &set.expr)),
            Stmt::SetBlock(block) => self.statements(&block.body),
            Stmt::AutoEscape(block) => self.statements(&block.body),
            Stmt::FilterBlock(block) => self.statements(&block.body),
            Stmt::Macro(block) => self.statements(&block.body),
            Stmt::CallBlock(block) => self.statements(&block.macro_decl.body),
            _ => {}
        }
    }

    /// Returns the variables `names`, and all variables assigned from one of them or from the content of one of the
    /// variables `owners`.
    fn names_for(&self, mut names: HashSet<&'s str>, owners: Option<&HashSet<&'s str>>) -> HashSet<&'s str> {
        loop {
            let before = names.len();
            for (target, value) in &self.sets {
                if let Expr::Var(var) = target
                    && (reads(value, &names, None)
                        || owners.is_some_and(|owners| reads(value, owners, Some("content"))))
                {
                    names.insert(var.id);
                }
            }
            if names.len() == before {
                return names;
            }
        }
    }
}

/// True if an expression is one of the variables `names`, possibly filtered or sliced. With `key`, the expression must
/// be the field `key` of one of these variables.
fn reads(expr: &Expr<'_>, names: &HashSet<&str>, key: Option<&str>) -> bool {
    match (expr, key) {
        (Expr::Filter(filter), _) => filter.expr.as_ref().is_some_and(|inner| reads(inner, names, key)),
        (Expr::Test(test), _) => reads(&test.expr, names, key),
        (Expr::Slice(slice), _) => reads(&slice.expr, names, key),
        (Expr::Var(var), None) => names.contains(var.id),
        (Expr::GetAttr(get), Some(key)) => get.name == key && reads(&get.expr, names, None),
        (Expr::GetItem(get), Some(key)) => {
            matches!(&get.subscript_expr, Expr::Const(name) if name.value.as_str() == Some(key))
                && reads(&get.expr, names, None)
        }
        _ => false,
    }
}

/// Name of the tested template within the rendering environment.
const NAME: &str = "chat";

/// Text of a system message by which the test recognises the message in the output: no template writes this text by
/// itself.
const SENTINEL: &str = "\u{e002}the second system message\u{e003}";

/// A template's treatment of a system message after a user's message: written, left out or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InlineSystem {
    Written,
    LeftOut,
    Refused,
}

impl InlineSystem {
    /// Tests how a template treats a system message after a user's message. Engines test this without the functions
    /// that transformers adds to Jinja. A template that needs one of these functions, or marks generated text,
    /// therefore counts as refusing.
    pub(super) fn of(source: &str) -> Self {
        if syntax::without_marks(source) != source {
            return Self::Refused;
        }
        match text(environment(Clock::default()), source) {
            Err(_) => Self::Refused,
            Ok(text) if text.contains(SENTINEL) => Self::Written,
            Ok(_) => Self::LeftOut,
        }
    }

    /// True if the engine moves system messages after the first to the top of the chat.
    pub(super) fn is_merged(self, dialect: Dialect) -> bool {
        match dialect.engine() {
            Engine::Vllm => self == Self::Refused,
            Engine::Sglang => self != Self::Written,
        }
    }
}

fn text(mut environment: Environment<'static>, source: &str) -> Result<String, minijinja::Error> {
    environment.remove_global("raise_exception");
    environment.remove_global("strftime_now");
    environment.add_template_owned(NAME, source.to_owned())?;
    let message = |role: &str, text: &str| object([("role", role.into()), ("content", text.into())]);
    let messages = [("system", "t"), ("user", "t"), ("system", SENTINEL), ("user", "t")];
    let messages: Value = messages.into_iter().map(|(role, text)| message(role, text)).collect();
    let context = object([("messages", messages), ("add_generation_prompt", false.into())]);
    environment.get_template(NAME)?.render(context)
}

#[cfg(test)]
mod tests {
    use super::super::accepts::*;

    #[test]
    fn which_content_a_template_wants() {
        for (source, expected) in [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", false),
            ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", true),
            ("{% for m in messages[1:] %}{% for c in m['content'] | list %}{% endfor %}{% endfor %}", true),
            (
                "{% set all = messages %}{% for m in all %}{% set x = m.content %}{% for c in x %}{% endfor %}{% endfor %}",
                true,
            ),
            ("{% for m in messages %}{% for t in m.tool_calls or [] %}{% endfor %}{{ m.content }}{% endfor %}", false),
        ] {
            assert_eq!(wants_parts(source).unwrap(), expected, "{source}");
        }
    }
}
