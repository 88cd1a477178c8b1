//! Chats that go on, out of order, edited, and malformed: with what is remembered of them and without, they are the same.
//!
//! `KVATLAS_SEEDS` sets how many random streams of bodies there are: 24 of 600.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvatlas_prompt::{Dialect, Endpoint, Options, Prompter, Request, Turns};
use serde::Deserialize;

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

/// Public templates, and some that look at what a next turn changes.
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

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) as usize % most
    }

    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.below(of.len())]
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 14] = [
            "some",
            "words",
            "say",
            " ",
            "a\n",
            "\"quoted\"",
            "naïve",
            "日本",
            "<|im_start|>",
            "<|im_end|>",
            "<s>",
            "\\",
            "\"messages\": [",
            "}]",
        ];
        let rare = self.below(3) == 0;
        let mut text = String::new();
        for _ in 0..self.below(900) {
            text.push_str(self.one(&WORDS[..if rare { WORDS.len() } else { 5 }]));
            text.push(' ');
        }
        text
    }

    /// A message of Messages as a client may write it.
    fn message_of_messages(&mut self, at: usize) -> String {
        let text = serde_json::to_string(&self.text()).unwrap();
        let role = ["user", "assistant"][at % 2];
        match self.below(30) {
            0 => format!(r#"{{"content":{text},"role":"{role}"}}"#),
            1..6 => format!(
                r#"{{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "c1", "content": {text}}}, {{"type": "text", "text": "{at}"}}]}}"#
            ),
            6..11 => format!(
                r#"{{"role": "assistant", "content": [{{"type": "thinking", "thinking": "so {at}", "signature": "s"}}, {{"type": "text", "text": {text}}}, {{"type": "tool_use", "id": "c1", "name": "f", "input": {{"a": {at}}}}}]}}"#
            ),
            11..14 => format!(
                r#"{{"role": "{role}", "content": [{{"type": "text", "text": {text}, "cache_control": {{"type": "ephemeral"}}}}]}}"#
            ),
            14 => format!(r#"{{"role": "system", "content": {text}}}"#),
            15 => r#"{"role": "user", "content": []}"#.to_owned(),
            16 => format!(
                r#"{{"role": "user", "content": [{{"type": "tool_addition", "tool": {{"definition": {{"name": "g{at}", "input_schema": {{}}}}}}}}]}}"#
            ),
            17 if self.below(4) == 0 => {
                r#"{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}"#.to_owned()
            }
            18 if self.below(4) == 0 => {
                self.one(&["{}", "5", r#"{"role": 5}"#, r#"{"role": "user" "#, "\"x\"", "[]"]).to_owned()
            }
            _ => format!(r#"{{"role": "{role}", "content": {text}}}"#),
        }
    }

    /// An item of Responses as a client may write it.
    fn item(&mut self, at: usize) -> String {
        let text = serde_json::to_string(&self.text()).unwrap();
        let role = ["user", "assistant"][at % 2];
        match self.below(30) {
            0..4 => format!(r#"{{"type": "function_call_output", "call_id": "c1", "output": {text}}}"#),
            4..8 => {
                format!(r#"{{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{{\"a\": {at}}}"}}"#)
            }
            8..11 => {
                format!(r#"{{"type": "reasoning", "summary": [{{"type": "summary_text", "text": {text}}}]}}"#)
            }
            11..14 => format!(
                r#"{{"type": "message", "role": "assistant", "phase": "{}", "content": [{{"type": "output_text", "text": {text}}}]}}"#,
                ["commentary", "final_answer"][at % 2]
            ),
            14 => format!(r#"{{"role": "{}", "content": {text}}}"#, self.one(&["system", "developer"])),
            15 => format!(r#"{{"role": "assistant", "content": {text}, "status": "in_progress"}}"#),
            16 => format!(
                r#"{{"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": {text}}}, {{"type": "custom_tool_call_output", "call_id": "c1", "output": "o"}}"#
            ),
            17 => r#"{"role": "assistant", "content": []}"#.to_owned(),
            18 if self.below(4) == 0 => {
                self.one(&["{}", "5", r#"{"role": 5}"#, r#"{"role": "user" "#, "\"x\"", "[]"]).to_owned()
            }
            _ => format!(
                r#"{{"type": "message", "role": "{role}", "content": [{{"type": "input_text", "text": {text}}}]}}"#
            ),
        }
    }

    /// An item of the list of an endpoint.
    fn said(&mut self, endpoint: Endpoint, at: usize) -> String {
        match endpoint {
            Endpoint::Messages => self.message_of_messages(at),
            Endpoint::Responses => self.item(at),
            _ => self.message(at),
        }
    }

    /// A message as a client may write it.
    fn message(&mut self, at: usize) -> String {
        let text = serde_json::to_string(&self.text()).unwrap();
        let role = if at == 0 { self.one(&["system", "user", "developer"]) } else { ["assistant", "user"][at % 2] };
        match self.below(24) {
            0 => format!(r#"{{"content":{text},"role":"{role}"}}"#),
            1 => format!("{{ \"role\" : \"{role}\",\n \"content\" : {text} }}"),
            2 => format!(
                r#"{{"role": "{role}", "content": [{{"type": "text", "text": {text}}}, {{"type": "text", "text": "b"}}]}}"#
            ),
            3 => format!(
                r#"{{"role": "assistant", "content": null, "tool_calls": [{{"id": "c1", "type": "function", "function": {{"name": "f", "arguments": "{{\"a\": {at}}}"}}}}]}}"#
            ),
            4 => format!(r#"{{"role": "tool", "tool_call_id": "c1", "content": {text}}}"#),
            5 => format!(r#"{{"role": "assistant", "content": {text}, "reasoning_content": {text}}}"#),
            6 => format!(r#"{{"role": "{role}", "content": {text}, "name": "someone", "other": [1, {{}}]}}"#),
            7 if self.below(4) == 0 => {
                format!(
                    r#"{{"role": "user", "content": [{{"type": "image_url", "image_url": {{"url": "x"}}}}, {{"type": "text", "text": {text}}}]}}"#
                )
            }
            8 if self.below(4) == 0 => {
                self.one(&["{}", "5", r#"{"role": 5}"#, r#"{"role": "user" "#, "\"x\"", "[]"]).to_owned()
            }
            _ => format!(r#"{{"role": "{role}", "content": {text}}}"#),
        }
    }

    /// A body with these messages.
    fn body(&mut self, endpoint: Endpoint, messages: &[String]) -> Vec<u8> {
        let between = if self.below(8) == 0 { self.one(&[",", " ,\n"]) } else { ", " };
        let list = format!("[{}]", messages.join(between));
        let more = self.one(&[
            "",
            "",
            "",
            "",
            "",
            r#", "add_generation_prompt": false"#,
            r#", "continue_final_message": true, "add_generation_prompt": false"#,
            r#", "add_special_tokens": true"#,
            r#", "truncate_prompt_tokens": 100"#,
            r#", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}]"#,
            r#", "chat_template_kwargs": {"enable_thinking": false}"#,
            r#", "messages": [{"role": "user", "content": "twice"}]"#,
            r#", "messages": null"#,
            r#", "stream": true, "user": "u", "max_tokens": 7"#,
            ", \"x\": \"\\u00e9\"",
            r#", "system": "be brief", "instructions": "be brief""#,
            r#", "system": "be brief", "instructions": "be brief""#,
            r#", "system": [{"type": "text", "text": "x-anthropic-billing-header: 5"}, {"type": "text", "text": "be brief"}]"#,
        ]);
        let mut body = match self.below(12) {
            0 => format!(r#"{{"messages": {list}, "model": "m"{more}}}"#),
            1 => format!(r#"{{"user": "\"messages\": [", "messages": {list}{more}}}"#),
            2 => format!(r#"{{"metadata": {{"messages": []}}, "messages": {list}{more}}}"#),
            3 => format!(
                r#"{{"metadata": {{"messages": {list}}}, "messages": [{{"role": "user", "content": "q"}}]{more}}}"#
            ),
            4 => format!("{{\"model\": \"m\", \"messages\" :\n {list} {more} }}"),
            _ => format!(r#"{{"model": "m", "messages": {list}{more}}}"#),
        };
        if endpoint == Endpoint::Responses {
            body = body.replace("\"messages\":", "\"input\":").replace("\"messages\" :", "\"input\" :");
        }
        match self.below(60) {
            0 => body.truncate(body.len() - 1),
            1 => body = body.replacen("}]", "},]", 1),
            2 => body = body.replacen("}, {", "} {", 1),
            3 => body.push('x'),
            _ => {}
        }
        let mut body = body.into_bytes();
        if self.below(60) == 0 {
            let at = self.below(body.len());
            body[at] = 0xff;
        }
        body
    }
}

#[test]
fn what_is_remembered_changes_nothing() {
    // With fewer it could be that no template of theirs takes the bodies.
    let streams = kvatlas_testing::seeds(24).max(9);
    let templates = templates();
    let endpoints = [Endpoint::Chat, Endpoint::Messages, Endpoint::Responses];
    let (mut recalled_at_all, mut bodies, mut with_tokens) = ([0; 3], [0; 3], [0; 3]);
    for seed in 0..streams {
        let kind = seed as usize % 3;
        let endpoint = endpoints[kind];
        let dialect = [Dialect::Vllm32, Dialect::Sglang, Dialect::Vllm31][(seed + seed / 3) as usize % 3];
        let mut random = Random(seed);
        let model = data(["byte_level", "metaspace", "unigram"][(seed / 3) as usize % 3]);
        let open = |random: &mut Random, cache_bytes| {
            let (name, template) = &templates[(seed as usize + 7 * random.below(2)) % templates.len()];
            let options =
                Options { chat_template: Some(template.clone()), cache_bytes, text: true, ..Options::default() };
            (name.clone(), Prompter::open(&model, options).unwrap().with_dialect(dialect))
        };
        let pair = |random: &mut Random| {
            let state = random.0;
            let (name, ours) = open(random, 1 << 20);
            random.0 = state;
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

/// An agent's next turn: a system prompt in blocks of which one changes each time, tools, and answers of tools.
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

/// Bodies beside one that was seen: with one byte another one anywhere, and with the same said otherwise.
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
    let mut random = Random(7);
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
