//! Examination and change of a template's source without rendering: delimiters, the marks of generated text, and
//! statements that add a variable to itself. A concatenation whose result is only output is changed so that its parts
//! are output one by one.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Object, Rest};
use minijinja::{Environment, Error, State, Value, context};

/// Returns the syntax of chat templates, with white space around blocks trimmed as in transformers.
pub(super) fn syntax() -> SyntaxConfig {
    let built = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    // Only delimiters can be invalid, and these are the defaults.
    built.unwrap_or_default()
}

/// Replaces the marks of generated text (`{% generation %}`, used in training) by conditions that always hold, so that
/// white space is trimmed as before.
pub(super) fn without_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}").map(|at| at + 2) else {
            rest = tag;
            break;
        };
        out.push_str(&replaced(&tag[..end]));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

fn replaced(tag: &str) -> Cow<'_, str> {
    let inner = &tag[2..tag.len() - 2];
    let left = if inner.starts_with(['-', '+']) { &inner[..1] } else { "" };
    let inner = &inner[left.len()..];
    let right = if inner.ends_with(['-', '+']) { &inner[inner.len() - 1..] } else { "" };
    match inner[..inner.len() - right.len()].trim() {
        "generation" => format!("{{%{left} if true {right}%}}").into(),
        "endgeneration" => format!("{{%{left} endif {right}%}}").into(),
        _ => tag.into(),
    }
}

/// True if a statement of a template adds a variable to itself. The template library joins lists lazily and does not
/// count the join as work: thirty-three doublings exceed any memory.
pub(super) fn adds_to_itself(source: &str) -> bool {
    let mut statement: Vec<Token<'_>> = Vec::new();
    let mut is_within = false;
    for token in tokenize(source, false, syntax()) {
        // The compiler reports the error.
        let Ok((token, _)) = token else { return false };
        match token {
            Token::BlockStart => is_within = true,
            Token::BlockEnd => {
                if doubles(&statement) {
                    return true;
                }
                statement.clear();
                is_within = false;
            }
            token if is_within => statement.push(token),
            _ => {}
        }
    }
    false
}

fn doubles(tokens: &[Token<'_>]) -> bool {
    let word = |token: &Token<'_>| match token {
        Token::Ident(name) => Some((*name).to_owned()),
        Token::Dot => Some(".".to_owned()),
        _ => None,
    };
    let pluses = tokens.iter().enumerate().filter(|(_, token)| matches!(token, Token::Plus));
    pluses.map(|(at, _)| at).any(|at| {
        let mut before: Vec<String> = tokens[..at].iter().rev().map_while(word).collect();
        before.reverse();
        let after: Vec<String> = tokens[at + 1..].iter().map_while(word).collect();
        !before.is_empty() && before == after
    })
}

/// Name of the template function that replaces concatenations and writes their texts one after another.
const JOINED: &str = "_kvatlas_joined";

/// List of texts that a template writes one after another, in place of their concatenation.
#[derive(Debug)]
pub(super) struct Pieces(Vec<Value>);

impl Object for Pieces {
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.texts().try_for_each(|text| f.write_str(text))
    }
}

impl Pieces {
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(Value::as_str)
    }
}

/// Adds the function [`JOINED`], which templates changed by [`with_pieces`] call, to an environment.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_function(JOINED, join);
}

fn join(state: &State<'_, '_>, values: Rest<Value>) -> Result<Value, Error> {
    let Rest(values) = values;
    if values.iter().all(|value| value.as_str().is_some()) {
        return Ok(Value::from_object(Pieces(values)));
    }
    // Numbers are added and lists concatenated; other types are an error of the operator.
    let sum = state.env().compile_expression("left + right")?;
    let mut values = values.into_iter();
    let first = values.next().unwrap_or_default();
    values.try_fold(first, |left, right| sum.eval(context! { left, right }))
}

/// Replaces the operators `+` between texts that a template writes by calls of [`JOINED`].
pub(super) fn with_pieces(source: &str) -> String {
    let mut made = String::with_capacity(source.len() + 1024);
    let mut done = 0;
    let mut inner: Option<Vec<(Token<'_>, usize, usize)>> = None;
    for token in tokenize(source, false, syntax()) {
        // The compiler reports the error.
        let Ok((token, span)) = token else { return source.to_owned() };
        match (&token, &mut inner) {
            (Token::VariableStart, _) => inner = Some(Vec::new()),
            (Token::VariableEnd, Some(tokens)) => {
                if let (Some(places), Some(first), Some(last)) = (pluses(tokens), tokens.first(), tokens.last()) {
                    made.push_str(&source[done..first.1]);
                    made.push_str(JOINED);
                    made.push('(');
                    let mut from = first.1;
                    for (start, end) in places {
                        made.push_str(&source[from..start]);
                        made.push(',');
                        from = end;
                    }
                    made.push_str(&source[from..last.2]);
                    made.push(')');
                    done = last.2;
                }
                inner = None;
            }
            (_, Some(tokens)) => tokens.push((token, span.start_offset as usize, span.end_offset as usize)),
            (_, None) => {}
        }
    }
    made.push_str(&source[done..]);
    made
}

/// Returns the positions of the operators `+` in an expression, if the expression is a sum of names, strings, calls and
/// filters; else `None`.
fn pluses(tokens: &[(Token<'_>, usize, usize)]) -> Option<Vec<(usize, usize)>> {
    const OPERATORS: [&str; 7] = ["if", "else", "and", "or", "not", "in", "is"];
    let (mut found, mut depth, mut is_empty) = (Vec::new(), 0_usize, true);
    for (token, start, end) in tokens {
        match token {
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => depth = depth.checked_sub(1)?,
            _ if depth > 0 => {}
            Token::Plus if is_empty => return None,
            Token::Plus => {
                found.push((*start, *end));
                is_empty = true;
                continue;
            }
            Token::Ident(name) if OPERATORS.contains(name) => return None,
            Token::Ident(_) | Token::Str(_) | Token::String(_) | Token::Dot | Token::Pipe => {}
            _ => return None,
        }
        is_empty = false;
    }
    (!found.is_empty() && !is_empty).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::super::environment::{Clock, environment};
    use super::*;

    #[test]
    fn marks_become_conditions() {
        assert_eq!(
            without_marks("a{%- generation %}b{% endgeneration -%}c{% if x %}d{% endif %}{%+generation-%}"),
            "a{%- if true %}b{% endif -%}c{% if x %}d{% endif %}{%+ if true -%}"
        );
        assert_eq!(without_marks("{%"), "{%");
        assert_eq!(without_marks("{%%}{%-%}"), "{%%}{%-%}");
    }

    #[test]
    fn values_that_are_added_to_themselves() {
        for (source, expected) in [
            ("{% set a = a + a %}", true),
            ("{% set ns.a = ns.a + ns.a %}", true),
            ("x{%- if b %}{%- set c = 1 + (a + a) -%}{% endif %}", true),
            ("{% set ns.a = ns.a + [b] %}", false),
            ("{% set ns.a = ns.a + a %}", false),
            ("{% set a = b + a %}{{ a + a }} a + a", false),
            ("{% set a = ", false),
        ] {
            assert_eq!(adds_to_itself(source), expected, "{source}");
        }
    }

    #[test]
    fn sums_that_are_written() {
        let name = JOINED;
        for (source, expected) in [
            ("{{ a + 'b' }}", format!("{{{{ {name}(a , 'b') }}}}")),
            ("{{- a['+'] + b.c|trim -}}x", format!("{{{{- {name}(a['+'] , b.c|trim) -}}}}x")),
            ("{{ a(b + c) + d[1 + 2:] }}", format!("{{{{ {name}(a(b + c) , d[1 + 2:]) }}}}")),
            ("{{ a + b if c }}", "{{ a + b if c }}".into()),
            ("{{ a + b * c }}", "{{ a + b * c }}".into()),
            ("{{ a + b ~ c }}", "{{ a + b ~ c }}".into()),
            ("{{ a + 1 }}", "{{ a + 1 }}".into()),
            ("{{ a + not b }}", "{{ a + not b }}".into()),
            ("{{ (a + b) }}{{ +a }}{{ a }}{{ a + }}", "{{ (a + b) }}{{ +a }}{{ a }}{{ a + }}".into()),
            ("{% set x = a + b %}{# {{ a + b }} #}", "{% set x = a + b %}{# {{ a + b }} #}".into()),
            ("{% raw %}{{ a + b }}{% endraw %}", "{% raw %}{{ a + b }}{% endraw %}".into()),
            ("{{ a + b", "{{ a + b".into()),
        ] {
            assert_eq!(with_pieces(source), expected);
        }
    }

    #[test]
    fn the_text_is_the_same() {
        let environment = environment(Clock::default());
        let values = context! {
            a => "é", b => "", c => 2, d => 3.5, list => [1, 2], none => (), map => context! { x => "<y>" },
        };
        let operands =
            ["a", "b", "c", "d", "list", "none", "map", "map.x", "map.z", "zz", "'x\\n+'", "a|upper", "c|string"];
        for left in operands {
            for right in operands {
                for last in ["a", "c", "list"] {
                    let source = format!(
                        "{{% set s %}}{{{{- {left} + {right} + {last} }}}}{{% endset %}}{{{{ s|length }}}}{{{{ s }}}}"
                    );
                    let pieces = with_pieces(&source);
                    assert_ne!(source, pieces);
                    let [right, got] = [&source, &pieces].map(|it| environment.render_str(it, &values).ok());
                    assert_eq!(got, right, "{source}");
                }
            }
        }
    }
}
