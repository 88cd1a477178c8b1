//! A test of whether a template takes a message's content as a list of parts: whether it loops over the content, under
//! any name.

use std::collections::HashSet;

use minijinja::Error;
use minijinja::machinery::ast::{Expr, Stmt};
use minijinja::machinery::parse;

/// True if a template takes a message's content as a list of parts.
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

/// Loops and assignments of a template.
#[derive(Default)]
struct Bindings<'t, 's> {
    /// Loops: the variable, and the expression looped over.
    loops: Vec<(&'t Expr<'s>, &'t Expr<'s>)>,
    /// Assignments: the variable, and its value.
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

    /// `names`, and the variables set to one of them, or to the content of one of `owners`.
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

/// True if an expression is one of the variables, or that key of one, possibly filtered or sliced.
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

#[cfg(test)]
mod tests {
    use super::*;

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
