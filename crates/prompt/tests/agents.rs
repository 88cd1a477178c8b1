//! Tests that bodies of agents and other clients give the same text as the engines' own code.
//!
//! `data/agents.json` is written by `tools/engine_prompts.py`, which runs the code of vLLM 0.33.0 and SGLang 0.5.23:
//! templates, bodies, and the text that each engine tokenizes; null where it refuses the request. Bodies of full size
//! have `<<words SEED COUNT>>` in place of long texts, and a hash in place of the expected text.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kvatlas_prompt::{Dialect, Endpoint, Options, Prompter, Request};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Samples {
    templates: BTreeMap<String, String>,
    bodies: BTreeMap<String, Case>,
    expected: BTreeMap<String, BTreeMap<String, EngineTexts>>,
}

#[derive(Deserialize)]
struct Case {
    endpoint: String,
    body: Box<RawValue>,
}

#[derive(Deserialize)]
struct EngineTexts {
    vllm: Option<String>,
    sglang: Option<String>,
}

/// A body with its long texts filled in.
fn grown(body: &str) -> Cow<'_, str> {
    let mut pieces = body.split("<<words ");
    let first = pieces.next().unwrap();
    let mut made = String::from(first);
    for piece in pieces {
        let (numbers, rest) = piece.split_once(">>").unwrap();
        let (seed, count) = numbers.split_once(' ').unwrap();
        words(seed.parse().unwrap(), count.parse().unwrap(), &mut made);
        made.push_str(rest);
    }
    if first.len() == body.len() { body.into() } else { made.into() }
}

/// Appends `count` words derived from the seed.
fn words(seed: u64, count: usize, made: &mut String) {
    let words: Vec<&str> =
        "the file tool must read `path` before it can write, then returns lines; never guess, ask a user 日本 naïve"
            .split(' ')
            .collect();
    let mut state = seed;
    for at in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        made.push_str(words[(state >> 33) as usize % words.len()]);
        made.push_str(if at % 14 == 13 { "\\n" } else { " " });
    }
}

/// The FNV-1a hash and the length of a text.
fn number(text: &str) -> String {
    let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{hash:016x} {}", text.len())
}

#[test]
fn texts_are_those_of_the_engines() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/agents.json");
    let golden: Samples = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut wrong, mut right) = (Vec::new(), 0);
    for (name, source) in &golden.templates {
        let options = Options { chat_template: Some(source.clone()), text: true, ..Options::default() };
        let model = format!("{}/tests/data/byte_level", env!("CARGO_MANIFEST_DIR"));
        let vllm = Prompter::open(model, options).unwrap();
        let sglang = vllm.with_dialect(Dialect::Sglang);
        for (case, expected) in &golden.expected[name] {
            let Case { endpoint, body } = &golden.bodies[case];
            let endpoint = *Endpoint::ALL.iter().find(|it| it.word() == endpoint).unwrap();
            let body = grown(body.get());
            let request = Request::parse(endpoint, body.as_bytes()).unwrap();
            for (prompter, engine, expected) in [(&vllm, "vllm", &expected.vllm), (&sglang, "sglang", &expected.sglang)]
            {
                // A refused request has no expected prompt.
                let Some(expected) = expected else { continue };
                let prompted = prompter.prompt(&request);
                let is_equal = match &body {
                    Cow::Borrowed(_) => prompted.text == *expected,
                    Cow::Owned(_) => number(&prompted.text) == *expected,
                };
                if prompted.whole && is_equal {
                    right += 1;
                } else {
                    let (got, why_not) = (&prompted.text, prompted.why_not);
                    wrong.push(format!(
                        "{engine}, {name}, {case}: {why_not:?}\n got      {got:?}\n expected {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{right} right, {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(right >= 400, "{right} texts");
}
