//! Tests that public templates render byte for byte as in transformers.
//!
//! `tests/data/templates.json` is written by `tools/chat_templates.py`: bodies of requests, templates, and the texts
//! that transformers renders; null where it refuses. `KVATLAS_TEMPLATES` names another file of this format.

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::chat::{Chat, Habits};
use crate::dialect_chat::ThinkingSwitches;
use crate::rope::Rope;
use crate::template::{ChatTemplate, Clock, KnownText};
use crate::{Dialect, Endpoint, Request};

#[derive(Deserialize)]
struct Samples {
    special_tokens: BTreeMap<String, String>,
    now: String,
    bodies: BTreeMap<String, Box<RawValue>>,
    templates: BTreeMap<String, Family>,
}

#[derive(Deserialize)]
struct Family {
    template: String,
    as_parts: bool,
    expected: BTreeMap<String, Option<String>>,
}

fn golden() -> Samples {
    let path = std::env::var("KVATLAS_TEMPLATES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/templates.json").to_owned());
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn as_transformers_renders_them() {
    let golden = golden();
    let now: DateTime = golden.now.parse().unwrap();
    let clock = Clock::at(now.to_zoned(jiff::tz::TimeZone::UTC).unwrap());
    let thinks = ThinkingSwitches { no_effort: &|| "none", toggle: None };
    let habits = Habits { defaults: &[], dialect: Dialect::Vllm32, merges_system: false, thinks };
    let mut wrong = Vec::new();
    let mut right = 0;
    for (name, family) in &golden.templates {
        let template = match ChatTemplate::with_clock(&family.template, golden.special_tokens.clone(), clock.clone()) {
            Ok(template) => template,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        if template.as_parts != family.as_parts {
            wrong.push(format!("{name}: as_parts {}", template.as_parts));
        }
        for (case, expected) in &family.expected {
            let request = Request::parse(Endpoint::Chat, golden.bodies[case].get().as_bytes()).unwrap();
            let got = Chat::of(&request, &habits, &[]).and_then(|chat| {
                let nothing = KnownText { text: &Rope::default(), begins: &[], known: 0 };
                chat.render(&template, nothing)
            });
            match (got, expected) {
                (Ok(got), Some(expected)) if got.text.to_vec() == expected.as_bytes() => right += 1,
                (Err(_), None) => right += 1,
                (got, expected) => {
                    wrong.push(format!("{name}/{case}:\n  got      {got:?}\n  expected {expected:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} right, {} wrong:\n{}", right, wrong.len(), wrong.join("\n"));
    assert!(golden.templates.len() >= 12 && right >= 200, "{right} texts of {} templates", golden.templates.len());
}
