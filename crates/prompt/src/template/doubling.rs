//! A test of whether a template adds a value to itself. Lists that are added are joined only when they are looked at, and
//! what that makes is not counted as work: thirty-three additions are more than any memory.

use minijinja::machinery::{Token, tokenize};

/// True if a statement of a template adds what a name stands for to the same.
pub(super) fn adds_to_itself(source: &str) -> bool {
    let mut statement: Vec<Token<'_>> = Vec::new();
    let mut is_within = false;
    for token in tokenize(source, false, super::syntax::syntax()) {
        // The compiler says what is wrong.
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
