//! The source of a template, read without rendering it: its delimiters, the marks of generated text, and statements that add
//! a value to itself.

use std::borrow::Cow;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// The syntax of templates, with white space around blocks trimmed as in transformers.
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

/// True if a statement of a template adds a variable to itself. minijinja joins lists lazily and does not count that as
/// work: thirty-three doublings exceed any memory.
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

#[cfg(test)]
mod tests {
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
}
