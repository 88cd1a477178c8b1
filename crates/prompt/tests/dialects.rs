//! Tests of differences between versions of vLLM, and of requests that engines refuse. Other conversions are in
//! `agents.rs`.

use kvatlas_prompt::{Dialect, Endpoint, Options, PromptFailure, PromptTokens, Prompter, Request};

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
