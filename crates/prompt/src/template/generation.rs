//! `{% generation %}`, with which training marks what the assistant wrote. Here only what is between counts.

use std::borrow::Cow;

/// The template with these marks as conditions that always hold: trimming at them stays as it is.
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
}
