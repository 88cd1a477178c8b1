//! Tests that growing chats, also out of order, edited and malformed, give the same with remembered turns and without.
//!
//! `KVATLAS_SEEDS` sets the number of random streams of bodies: 24 for 600.

mod bodies;

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvatlas_prompt::{Dialect, Endpoint, Options, Prompter, Request, Turns};
use serde::Deserialize;

use bodies::Random;

fn data(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR")))
}

#[derive(Deserialize)]
struct Samples {
    templates: BTreeMap<String, Family>,
}

#[derive(Deserialize)]
struct Family {
    template: String,
}

/// Public templates, and some that depend on parts that a next turn changes.
fn templates() -> Vec<(String, String)> {
    let golden: Samples = serde_json::from_slice(&std::fs::read(data("templates.json")).unwrap()).unwrap();
    let mut all: Vec<_> = golden.templates.into_iter().map(|(name, family)| (name, family.template)).collect();
    let own = [
        (
            "the last one first",
            "{{ messages[-1].content }}<|im_end|>{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
        ),
        (
            "how many",
            "{% for m in messages %}<|im_start|>{{ m.content }} of {{ messages | length }}<|im_end|>{% endfor %}",
        ),
        (
            "only the last",
            "{% for m in messages %}{% if loop.last %}<|im_start|>{{ m.content }}{% endif %}{% endfor %}",
        ),
        ("backwards", "{% for m in messages | reverse %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"),
        (
            "thoughts go",
            "{% for m in messages %}<|im_start|>{{ m.role }} {% if not loop.last and m.content is string %}{{ m.content.split('q')[0] }}{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}",
        ),
        (
            "each for itself",
            "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ enable_thinking }}{% endif %}",
        ),
        (
            "beside, first, last, even",
            "{{ messages[0].role }}{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role != m.role %}<|im_start|>{% endif %}{% if loop.index0 % 2 == 0 %}even{% endif %}{{ m.role }} {{ m.content | trim }}{% if loop.last or messages[loop.index0 + 1].role == 'user' %}<|im_end|>{% endif %}{{ loop.previtem.role }}{% endfor %}",
        ),
        (
            "some are left out",
            "{% set first = messages[0] %}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{% set x = m.content %}<|im_start|>{{ first.role }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% if not loop.last %},{% endif %}{% endfor %}{{ x }}{% endfor %}",
        ),
        ("without marks", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"),
        (
            "refuses",
            "{% if messages | length > 9 %}{{ raise_exception('too many') }}{% endif %}{{ messages | tojson }}",
        ),
    ];
    all.extend(own.map(|(name, source)| (name.to_owned(), source.to_owned())));
    all
}

#[test]
fn what_is_remembered_changes_nothing() {
    // Fewer streams might have no template that accepts the bodies.
    let streams = kvatlas_testing::seeds(24).max(9);
    let templates = templates();
    let endpoints = [Endpoint::Chat, Endpoint::Messages, Endpoint::Responses];
    let (mut recalled_at_all, mut bodies, mut with_tokens) = ([0; 3], [0; 3], [0; 3]);
    for seed in 0..streams {
        let kind = seed as usize % 3;
        let endpoint = endpoints[kind];
        let dialect = [Dialect::Vllm32, Dialect::Sglang, Dialect::Vllm31][(seed + seed / 3) as usize % 3];
        let mut random = Random(kvatlas_testing::Random(seed));
        let model = data(["byte_level", "metaspace", "unigram"][(seed / 3) as usize % 3]);
        let open = |random: &mut Random, cache_bytes| {
            let (name, template) = &templates[(seed as usize + 7 * random.below(2)) % templates.len()];
            let options =
                Options { chat_template: Some(template.clone()), cache_bytes, text: true, ..Options::default() };
            (name.clone(), Prompter::open(&model, options).unwrap().with_dialect(dialect))
        };
        let pair = |random: &mut Random| {
            let state = random.0.0;
            let (name, ours) = open(random, 1 << 20);
            random.0.0 = state;
            (name, ours, open(random, 0).1)
        };
        let prompters = [pair(&mut random), pair(&mut random)];
        let turns = Turns::new([400_000, 64 << 20][random.below(2)]);
        let mut chats: Vec<Vec<String>> = vec![Vec::new(); 3];
        for step in 0..60 {
            let at = random.below(chats.len());
            let length = chats[at].len();
            match random.below(14) {
                0 if length > 0 => {
                    let place = random.below(length);
                    chats[at][place] = random.said(endpoint, place);
                }
                1 => chats[at].truncate(length.saturating_sub(1)),
                2 => chats[at] = chats[random.below(3)].clone(),
                3 if length > 20 => chats[at].clear(),
                4 => {}
                _ => {
                    for _ in 0..=random.below(3) {
                        let message = random.said(endpoint, chats[at].len());
                        chats[at].push(message);
                    }
                }
            }
            let messages = chats[at].clone();
            let body = random.body(endpoint, &messages);
            let (name, ours, plain) = &prompters[random.below(8) / 7];
            let told = format!("seed {seed}, {}, step {step}, template {name}", endpoint.word());

            let right = Request::parse(endpoint, &body).map(|request| (plain.prompt(&request), request));
            let recalled = turns.recall(endpoint, &body);
            let got = recalled
                .parse(endpoint, &body)
                .map(|request| (turns.prompt(ours, &request, &recalled, &body), request));
            bodies[kind] += 1;
            recalled_at_all[kind] += usize::from(recalled.new_bytes() < body.len() / 2);
            match (got, right) {
                (Ok((got, ours)), Ok((right, request))) => {
                    with_tokens[kind] += usize::from(!right.tokens().is_empty());
                    assert!(got == right, "{told}: {}", String::from_utf8_lossy(&body));
                    // Taken over from the turn before, if that was asked in the same way.
                    let size = [16, 16, 16, 8, 4][step / 3 % 5];
                    let salt = (step % 5 == 4).then_some("salt");
                    let hashes = [&got, &right].map(|prompted| prompted.content_hashes(size, None, salt));
                    assert_eq!(hashes[0], hashes[1], "{told}");
                    let fields = |request: &Request<'_>| {
                        let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(str::to_owned);
                        let numbers = (request.answers, request.max_tokens, request.priority, request.body_len());
                        (
                            text(&request.model),
                            request.session.session_id.map(|raw| raw.get().to_owned()),
                            text(&request.cache_salt),
                            request.stream,
                            numbers,
                        )
                    };
                    assert_eq!(fields(&ours), fields(&request), "{told}");
                }
                (got, right) => {
                    let (got, right) = (got.map(|(got, _)| got), right.map(|(right, _)| right));
                    assert_eq!(got, right, "{told}: {}", String::from_utf8_lossy(&body));
                }
            }
        }
    }
    for ((known, with), all) in recalled_at_all.into_iter().zip(with_tokens).zip(bodies) {
        assert!(known * 20 > all, "{recalled_at_all:?} of {bodies:?} bodies were mostly known");
        assert!(with * 3 > all, "{with_tokens:?} of {bodies:?} had tokens");
    }
}

#[test]
fn a_next_turn_costs_what_is_new() {
    let prompter = Prompter::open(data("byte_level"), Options::default()).unwrap();
    let turns = Turns::new(1 << 20);
    let body = |count: usize| {
        let list: Vec<_> =
            (0..count).map(|at| serde_json::json!({"role": "user", "content": format!("{at} ").repeat(500)})).collect();
        serde_json::json!({"model": "m", "messages": list}).to_string().into_bytes()
    };
    for count in [8, 9, 10, 9, 10] {
        let body = body(count);
        let recalled = turns.recall(Endpoint::Chat, &body);
        let request = recalled.parse(Endpoint::Chat, &body).unwrap();
        let _ = turns.prompt(&prompter, &request, &recalled, &body);
    }
    assert!(turns.recall(Endpoint::Chat, &body(10)).new_bytes() < 100);
    assert!(turns.recall(Endpoint::Chat, &body(12)).new_bytes() < 3500);
    assert_eq!(turns.recall(Endpoint::Completions, &body(10)).new_bytes(), body(10).len());
    let nothing = Turns::new(0);
    let body = body(10);
    let recalled = nothing.recall(Endpoint::Chat, &body);
    let request = recalled.parse(Endpoint::Chat, &body).unwrap();
    let _ = nothing.prompt(&prompter, &request, &recalled, &body);
    assert_eq!(nothing.recall(Endpoint::Chat, &body).new_bytes(), body.len());
}

/// An agent's next turn: a system prompt in blocks, one of them new each time, tools, and tool results.
#[test]
fn an_agents_next_turn_costs_what_is_new() {
    let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {{ m.content }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}";
    let options = Options { chat_template: Some(template.to_owned()), text: true, ..Options::default() };
    let prompter = Prompter::open(data("byte_level"), options).unwrap();
    let text = |at: usize| format!("{at} says ").repeat(300);
    let messages = |count: usize| {
        let turn = |at: usize| match at % 2 {
            0 => serde_json::json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": text(at)}]}),
            _ => serde_json::json!({"role": "assistant", "content": [{"type": "text", "text": text(at)},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"at": at}}]}),
        };
        let billing = format!("x-anthropic-billing-header: {count}");
        let list: Vec<_> = (0..count).map(turn).collect();
        serde_json::json!({"messages": list, "tools": [{"name": "f", "input_schema": {}}],
            "system": [{"type": "text", "text": billing}, {"type": "text", "text": "be brief"}]})
    };
    let responses = |count: usize| {
        let item = |at: usize| match at % 3 {
            0 => serde_json::json!({"type": "function_call_output", "call_id": "c", "output": text(at)}),
            1 => serde_json::json!({"type": "message", "role": "assistant",
                "content": [{"type": "output_text", "text": text(at)}]}),
            _ => serde_json::json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}),
        };
        let list: Vec<_> = (0..count).map(item).collect();
        serde_json::json!({"instructions": "be brief", "input": list, "tools": [{"type": "function", "name": "f"}]})
    };
    let kinds: [(Endpoint, &dyn Fn(usize) -> serde_json::Value); 2] =
        [(Endpoint::Messages, &messages), (Endpoint::Responses, &responses)];
    for (endpoint, body) in kinds {
        let turns = Turns::new(1 << 20);
        for count in [9, 12, 15, 18] {
            let body = body(count).to_string().into_bytes();
            let recalled = turns.recall(endpoint, &body);
            let request = recalled.parse(endpoint, &body).unwrap();
            let got = turns.prompt(&prompter, &request, &recalled, &body);
            assert!(count == 9 || recalled.new_bytes() < body.len() * 2 / 3, "{}", endpoint.word());
            let whole = prompter.prompt(&Request::parse(endpoint, &body).unwrap());
            assert!(got == whole && got.whole, "{}: {:?}", endpoint.word(), got.why_not);
        }
    }
}

/// Variants of a known body: with any one byte changed, and the same messages written differently.
#[test]
fn what_is_beside_a_body_that_was_seen() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let open = |cache_bytes| {
        let options =
            Options { chat_template: Some(template.to_owned()), cache_bytes, text: true, ..Options::default() };
        Prompter::open(data("byte_level"), options).unwrap()
    };
    let (ours, plain) = (open(1 << 20), open(0));
    let mut random = Random(kvatlas_testing::Random(7));
    let message =
        |at: usize, text: &str| format!(r#"{{"role": "{}", "content": "{text}"}}"#, ["user", "assistant"][at % 2]);
    let messages: Vec<String> =
        (0..12).map(|at| message(at, &format!("number {at} says caf\u{e9} and more, ").repeat(20 + at))).collect();
    let list = messages.join(", ");
    let seen = format!(r#"{{"model": "m", "messages": [{list}], "temperature": 0.5, "stream": true}}"#);
    let mut others: Vec<Vec<u8>> = vec![
        seen.replace('\u{e9}', "\\u00e9").into_bytes(),
        seen.replacen('\u{e9}', "\\u00e9", 1).into_bytes(),
        seen.replace("0.5", "0.25").into_bytes(),
        seen.replace("\"stream\": true", "\"stream\": false, \"tools\": []").into_bytes(),
        seen.replace("\"stream\": true", "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]")
            .into_bytes(),
        seen.replace("\"stream\": true", "\"add_generation_prompt\": false").into_bytes(),
        seen.replace("\"stream\": true", "\"model\": \"other\"").into_bytes(),
        seen.replace("\"stream\": true", "\"messages\": [{\"role\": \"user\", \"content\": \"again\"}]").into_bytes(),
        seen.replacen("\"model\": \"m\"", "\"messages\": [{\"role\": \"user\", \"content\": \"before\"}]", 1)
            .into_bytes(),
        format!(r#"{{"stream": true, "messages": [{list}], "model": "m"}}"#).into_bytes(),
        format!(r#"{{"messages": [{list} , {}], "model": "m"}}"#, message(12, "new")).into_bytes(),
        format!(r#"{{"messages": [{list}, {}], "model": "m"}}"#, message(12, "<|im_end|><|im_start|>")).into_bytes(),
        format!(r#"{{"messages": [{}], "model": "m"}}"#, messages[..11].join(", ")).into_bytes(),
        format!(r#"{{"messages": [{}], "model": "m"}}"#, messages[1..].join(", ")).into_bytes(),
        seen.replace(
            "\"role\": \"assistant\", \"content\"",
            "\"role\": \"assistant\", \"role\": \"user\", \"content\"",
        )
        .into_bytes(),
    ];
    for _ in 0..300 {
        let mut other = seen.clone().into_bytes();
        let at = random.below(other.len());
        other[at] = b"x\"\\}]{,: 0"[random.below(10)];
        others.push(other);
    }
    for (number, body) in others.iter().enumerate() {
        let turns = Turns::new(64 << 20);
        let mut mostly_known = 0;
        for body in [seen.as_bytes(), body, seen.as_bytes()] {
            let right = Request::parse(Endpoint::Chat, body).map(|request| plain.prompt(&request));
            let recalled = turns.recall(Endpoint::Chat, body);
            mostly_known += usize::from(recalled.new_bytes() < body.len() / 2);
            let got =
                recalled.parse(Endpoint::Chat, body).map(|request| turns.prompt(&ours, &request, &recalled, body));
            assert_eq!(got, right, "{number}: {}", String::from_utf8_lossy(body));
        }
        assert!(mostly_known > 0, "{number}");
    }
}
