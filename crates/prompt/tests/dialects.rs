//! Tests that bodies of agents and other clients give the same text as the engines' own code, of differences between
//! versions of vLLM, and of requests that engines refuse.
//!
//! `data/agents.json` is written by `tools/engine_prompts.py`, which runs the code of vLLM 0.33.0 and SGLang 0.5.23:
//! templates, bodies, and the text that each engine tokenizes; null where it refuses the request. Bodies of full size have
//! `<<words SEED COUNT>>` in place of long texts, and a hash in place of the expected text.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kvatlas_prompt::{Dialect, Endpoint, Options, PromptFailure, PromptTokens, Prompter, Request};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A template that writes each message as a line, then the names of tools and the variables.
const ALL: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{{ reasoning_effort }} {{ enable_thinking }}";

fn prompted(dialect: Dialect, endpoint: Endpoint, body: &str) -> PromptTokens {
    let model = format!("{}/tests/data/byte_level", env!("CARGO_MANIFEST_DIR"));
    let options = Options { chat_template: Some(ALL.into()), text: true, dialect, ..Options::default() };
    Prompter::open(model, options).unwrap().prompt(&Request::parse(endpoint, body.as_bytes()).unwrap())
}

#[track_caller]
fn expect(endpoint: Endpoint, body: &str, expected: [&str; 3]) {
    for (dialect, expected) in [Dialect::Vllm30, Dialect::Vllm31, Dialect::Vllm32].into_iter().zip(expected) {
        assert_eq!(prompted(dialect, endpoint, body).text, expected, "{dialect:?}");
    }
}

#[test]
fn lines_of_billing() {
    let kept = "system: x-anthropic-billing-header: a\nyou\nuser: hi\n ";
    let body = r#"{"system": "x-anthropic-billing-header: a\nyou", "messages": [{"role": "user", "content": "hi"}]}"#;
    expect(Endpoint::Messages, body, [kept, kept, "system: you\nuser: hi\n "]);
    let body = r#"{"messages": [{"role": "system", "content": "x-anthropic-billing-header: a\nyou"}, {"role": "user", "content": "hi"}]}"#;
    expect(Endpoint::Chat, body, [kept, kept, "system: you\nuser: hi\n "]);
    // All versions drop blocks of system prompts.
    let body = r#"{"system": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "you"}], "messages": [{"role": "user", "content": "hi"}]}"#;
    expect(Endpoint::Messages, body, ["system: you\nuser: hi\n "; 3]);
}

#[test]
fn thinking_that_is_disabled() {
    let body = r#"{"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}, "messages": [{"role": "user", "content": "q"}]}"#;
    expect(Endpoint::Messages, body, ["user: q\nhigh True", "user: q\nnone False", "user: q\nnone False"]);
}

#[test]
fn tools_of_type_custom_and_tools_that_come_and_go() {
    let body = r#"{"input": "q", "tools": [{"type": "custom", "name": "patch"}, {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]}]}"#;
    expect(
        Endpoint::Responses,
        body,
        ["user: q\nfiles__read  ", "user: q\nfiles__read  ", "user: q\npatch files__read  "],
    );
    for (endpoint, body) in [
        (
            Endpoint::Responses,
            r#"{"input": [{"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "x"}]}"#,
        ),
        (
            Endpoint::Messages,
            r#"{"tools": [{"name": "f", "input_schema": {}}], "messages": [{"role": "user", "content": "q"}, {"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}]}]}"#,
        ),
    ] {
        assert_eq!(prompted(Dialect::Vllm31, endpoint, body).why_not, Some(PromptFailure::OtherItem));
        assert_eq!(prompted(Dialect::Vllm32, endpoint, body).why_not, None);
    }
}

#[test]
fn what_engines_refuse() {
    let redacted = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "A"}]}]}"#;
    let packed =
        r#"{"input": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "sglang-reasoning-v1.A"}]}"#;
    let searched = r#"{"input": [{"type": "web_search_call", "id": "r"}]}"#;
    for (dialect, endpoint, body) in [
        (Dialect::Sglang, Endpoint::Messages, redacted),
        (Dialect::Vllm32, Endpoint::Responses, packed),
        // SGLang accepts its own packed thoughts, which are not unpacked here.
        (Dialect::Sglang, Endpoint::Responses, packed),
        (Dialect::Vllm32, Endpoint::Responses, searched),
        (Dialect::Sglang, Endpoint::Responses, searched),
    ] {
        assert_eq!(prompted(dialect, endpoint, body).why_not, Some(PromptFailure::OtherItem), "{dialect:?} {body}");
    }
}

#[test]
fn chats_of_which_all_engines_make_the_same() {
    let user = r#"{"role": "user", "content": "q"}"#;
    for (endpoint, body, expected) in [
        (Endpoint::Chat, format!(r#"{{"messages": [{user}, {{"role": "assistant", "content": "a"}}, {user}]}}"#), true),
        (Endpoint::Completions, r#"{"prompt": "q"}"#.to_owned(), true),
        (Endpoint::Chat, format!(r#"{{"messages": [{user}, {{"role": "assistant", "content": "a"}}]}}"#), false),
        (Endpoint::Chat, r#"{"messages": [{"role": "user", "content": ["a", "b"]}]}"#.to_owned(), false),
        (Endpoint::Chat, format!(r#"{{"messages": [{user}], "reasoning_effort": "low"}}"#), false),
        (
            Endpoint::Chat,
            format!(r#"{{"messages": [{user}], "tools": [{{"type": "function", "function": {{"name": "f"}}}}]}}"#),
            false,
        ),
        (
            Endpoint::Chat,
            format!(r#"{{"messages": [{{"role": "system", "content": "x-anthropic-billing-header: a"}}, {user}]}}"#),
            false,
        ),
        (Endpoint::Messages, format!(r#"{{"messages": [{user}]}}"#), false),
    ] {
        let prompted = prompted(Dialect::Vllm32, endpoint, &body);
        assert_eq!(prompted.is_alike(body.as_bytes()), expected, "{body}");
    }
}

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
