//! A benchmark of the time from the bytes of a request's body to content hashes, with a given tokenizer. If the
//! tokenizer has no chat template, one in the style of ChatML is used.
//!
//! `cargo run --release -p kvatlas-prompt --features jemalloc --example prompt_speed -- TOKENIZER TEXT...`
//!
//! `TOKENIZER` is a `tokenizer.json` or a directory with one; the texts (files) provide the words of the chats. Each
//! chat begins with new text; then come turns of about 300 tokens, each new. Environment variables change the requests:
//!
//! | variable | what |
//! |---|---|
//! | `SHAPE` | `chat` (the default), `messages` as Claude Code sends them, or `responses` as Codex does |
//! | `BYTES` | bytes of a chat's text at first, 48000 if not given |
//! | `TURNS` | next turns of each chat, 6 if not given |
//! | `COMMON` | if set, the common tokenizer library is measured too, and everything compared with it |
//!
//! Prints the median and the 99th percentile, beside the tokenizer libraries' own time for the same text. The order of
//! the two measurements alternates, as the text is in the processor's caches for the second; the last lines are the
//! ratio of the medians and the library's share.
#![allow(clippy::print_stdout, missing_docs)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use kvatlas_prompt::{Endpoint, Library, Options, PromptFailure, Prompter, Request, Turns};
use serde_json::{Value, json};

// The allocator of released builds.
#[cfg(all(feature = "jemalloc", target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const TEMPLATE: &str = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + \
                        '<|im_end|>' + '\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' \
                        }}{%- endif %}";
const FIRST_BYTES: usize = 48_000;
/// Length of a chat's first messages, in bytes.
const MESSAGE_BYTES: usize = 2_000;
const TURN_BYTES: usize = 1_200;
const TURNS: usize = 6;

/// The text of files, read from beginning to end and never twice.
struct Corpus {
    text: String,
    at: usize,
}

impl Corpus {
    fn next(&mut self, bytes: usize) -> Option<String> {
        let end = (self.at + bytes..).find(|&end| end >= self.text.len() || self.text.is_char_boundary(end))?;
        let piece = self.text.get(self.at..end)?.to_owned();
        self.at = end;
        Some(piece)
    }
}

/// The API in whose format a chat is sent.
#[derive(Clone, Copy)]
enum Shape {
    Chat,
    /// Blocks in lists, tool calls and their results, a system prompt in two blocks, and tool definitions.
    Messages,
    /// Items, function calls, and tool definitions.
    Responses,
}

impl Shape {
    fn endpoint(self) -> Endpoint {
        match self {
            Self::Chat => Endpoint::Chat,
            Self::Messages => Endpoint::Messages,
            Self::Responses => Endpoint::Responses,
        }
    }

    /// The body of a chat whose turns have these texts: user and assistant in turn, with one tool call each.
    fn body(self, texts: &[String]) -> Vec<u8> {
        let turns = texts.iter().enumerate();
        let name = |at: usize| format!("call_{at}");
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
        match self {
            Self::Chat => {
                let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
                let turns = turns.map(|(at, text)| json!({"role": role(at), "content": text}));
                let first = json!({"role": "system", "content": "You are a helpful assistant."});
                let messages: Vec<Value> = std::iter::once(first).chain(turns).collect();
                json!({"model": "m", "stream": true, "max_tokens": 100, "messages": messages})
            }
            Self::Messages => {
                let block = |text: &String| json!({"type": "text", "text": text});
                let messages: Vec<Value> = turns
                    .map(|(at, text)| match at % 2 {
                        0 if at > 0 => json!({"role": "user", "content": [
                            {"type": "tool_result", "tool_use_id": name(at - 1), "content": [block(text)]}]}),
                        0 => json!({"role": "user", "content": [block(text)]}),
                        _ => json!({"role": "assistant", "content": [block(text), {"type": "tool_use", "id": name(at),
                            "name": "read", "input": {"path": format!("src/{at}.rs")}}]}),
                    })
                    .collect();
                let tools = json!([{"name": "read", "description": "Reads a file.", "input_schema": schema}]);
                let system = [block(&"You are an agent.".into()), block(&"Be brief.".into())];
                json!({"model": "m", "stream": true, "max_tokens": 100, "system": system, "messages": messages,
                    "tools": tools})
            }
            Self::Responses => {
                let items: Vec<Value> = turns
                    .flat_map(|(at, text)| match at % 2 {
                        0 if at > 0 => {
                            vec![json!({"type": "function_call_output", "call_id": name(at - 1), "output": text})]
                        }
                        0 => vec![json!({"type": "message", "role": "user",
                            "content": [{"type": "input_text", "text": text}]})],
                        _ => vec![
                            json!({"type": "message", "role": "assistant",
                                "content": [{"type": "output_text", "text": text}]}),
                            json!({"type": "function_call", "call_id": name(at), "name": "shell",
                                "arguments": json!({"path": format!("src/{at}.rs")}).to_string()}),
                        ],
                    })
                    .collect();
                let tools = json!([{"type": "function", "name": "shell", "parameters": schema, "strict": false}]);
                json!({"model": "m", "stream": true, "instructions": "You are an agent.", "input": items,
                    "tools": tools})
            }
        }
        .to_string()
        .into_bytes()
    }
}

struct Times {
    name: &'static str,
    all: Vec<Duration>,
}

impl Times {
    fn new(name: &'static str) -> Self {
        Self { name, all: Vec::new() }
    }

    fn add<T>(&mut self, timed: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = timed();
        self.all.push(start.elapsed());
        value
    }

    /// The median of the sorted times, in seconds.
    fn middle(&self) -> f64 {
        self.all[(self.all.len() - 1) / 2].as_secs_f64()
    }

    fn print(&mut self) {
        self.all.sort();
        let at = |share: f64| self.all[((self.all.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        println!("{:56} p50 {:8.3} ms   p99 {:8.3} ms   ({} times)", self.name, at(0.5), at(0.99), self.all.len());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let variable = |name| std::env::var(name).ok();
    let shape = match variable("SHAPE").as_deref() {
        None | Some("chat") => Shape::Chat,
        Some("messages") => Shape::Messages,
        Some("responses") => Shape::Responses,
        Some(_) => return Err("SHAPE must be chat, messages or responses".into()),
    };
    let first_bytes = variable("BYTES").map_or(Ok(FIRST_BYTES), |bytes| bytes.parse())?;
    let turns_each = variable("TURNS").map_or(Ok(TURNS), |turns| turns.parse())?;
    let has_common = variable("COMMON").is_some();
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().ok_or("the first argument must be a tokenizer.json or a directory that has one")?;
    let mut corpus = Corpus { text: String::new(), at: 0 };
    for file in arguments {
        corpus.text.push_str(&String::from_utf8_lossy(&std::fs::read(file)?));
    }
    let file = if std::path::Path::new(&model).is_dir() { format!("{model}/tokenizer.json") } else { model.clone() };
    let library = tokenizers::Tokenizer::from_file(&file).map_err(|error| error.to_string())?;
    let quick = fastokens::Tokenizer::from_file(std::path::Path::new(&file)).ok();
    let open = |library| -> Result<Prompter, kvatlas_prompt::Error> {
        let options = Options { library, ..Options::default() };
        let own = Prompter::open(&model, options.clone())?;
        let chat = Request::parse(Endpoint::Chat, br#"{"messages": [{"role": "user", "content": "hi"}]}"#)
            .map_err(|why| kvatlas_prompt::Error::Template { message: why.to_string() })?;
        if own.prompt(&chat).why_not != Some(PromptFailure::NoTemplate) {
            return Ok(own);
        }
        Prompter::open(&model, Options { chat_template: Some(TEMPLATE.into()), ..options })
    };
    let start = Instant::now();
    let best: Prompter = open(Library::Best)?;
    println!("opened in {:.2} s {:?}", start.elapsed().as_secs_f64(), best.notes());
    let common: Option<Prompter> = has_common.then(|| open(Library::Common)).transpose()?;
    let template = std::fs::read_to_string(format!("{model}/chat_template.jinja")).unwrap_or(TEMPLATE.into());
    let texts = Options { chat_template: Some(template), text: true, ..Options::default() };
    let texts = Prompter::without_tokenizer(texts)?;

    let mut own = Times::new("common library, the text at once (never seen)");
    let mut own_quick = Times::new("quick library, the text at once (never seen)");
    let mut parse = Times::new("  of which parsing the body");
    let mut render = Times::new("  of which parsing, messages, and the template");
    let mut never = Times::new("never seen: body to hashes");
    let mut never_common = Times::new("never seen: body to hashes, common library");
    let mut turn = Times::new("next turn of 300 tokens: body to hashes");
    let mut turn_common = Times::new("next turn of 300 tokens: body to hashes, common library");
    let mut kept = Times::new("next turn of 300 tokens: body to hashes, as the router does");
    let turns = Turns::new(256 << 20);
    let (mut tokens, mut rounds) = (0, 0);
    'chats: loop {
        let mut said = Vec::new();
        for _ in 0..first_bytes / MESSAGE_BYTES {
            let Some(text) = corpus.next(MESSAGE_BYTES) else { break 'chats };
            said.push(text);
        }
        let bytes = shape.body(&said);
        let request = parse.add(|| Request::parse(shape.endpoint(), &bytes))?;
        let text = render.add(|| texts.prompt(&request)).text;
        let mut alone = || {
            let Some(quick) = &quick else { return };
            let made = own_quick.add(|| quick.encode_with_special_tokens(&text, false));
            black_box(made.is_ok());
        };
        if rounds % 2 == 0 {
            alone();
        }
        // As in the router: remembered data is used, or stored.
        let prompted = never.add(|| recall(&best, &turns, shape, &bytes));
        if rounds % 2 == 1 {
            alone();
        }
        if let Some(common) = &common {
            let same = never_common.add(|| decide(common, shape, &bytes));
            assert_eq!(prompted, same, "the libraries must agree");
            let right = own.add(|| library.encode_fast(text.as_str(), false)).map_err(|error| error.to_string())?;
            assert_eq!(right.get_ids().len(), prompted.0, "the library must agree");
        }
        tokens += prompted.0;
        rounds += 1;
        for _ in 0..turns_each {
            for _ in 0..2 {
                let Some(text) = corpus.next(TURN_BYTES / 2) else { break 'chats };
                said.push(text);
            }
            let bytes = shape.body(&said);
            let first = kept.add(|| recall(&best, &turns, shape, &bytes));
            let prompted = turn.add(|| decide(&best, shape, &bytes));
            assert_eq!(first, prompted, "what is remembered changes nothing");
            if let Some(common) = &common {
                let same = turn_common.add(|| decide(common, shape, &bytes));
                assert_eq!(prompted, same, "the libraries must agree");
            }
        }
    }
    if rounds == 0 {
        return Err(format!("the texts must have at least {first_bytes} bytes").into());
    }
    println!("{rounds} chats of {} tokens at first", tokens / rounds);
    let all = [
        &mut own,
        &mut own_quick,
        &mut never,
        &mut parse,
        &mut render,
        &mut never_common,
        &mut kept,
        &mut turn,
        &mut turn_common,
    ];
    all.into_iter().filter(|times| !times.all.is_empty()).for_each(Times::print);
    let whole = never.middle();
    for (name, alone) in
        [("common", &own), ("quick", &own_quick)].into_iter().filter(|(_, times)| !times.all.is_empty())
    {
        let alone = alone.middle();
        println!(
            "never seen beside the {name} library's own time: {:.2} times; the library's time is {:.0} % of it",
            whole / alone,
            alone / whole * 100.0
        );
    }
    Ok(())
}

/// The number of tokens and the content hashes, which a decision needs.
fn decide(prompter: &Prompter, shape: Shape, body: &[u8]) -> (usize, Vec<u64>) {
    match Request::parse(shape.endpoint(), black_box(body)) {
        Ok(request) => {
            let prompted = prompter.prompt(&request);
            (prompted.token_count(), prompted.content_hashes(16, None, None))
        }
        Err(_) => (0, Vec::new()),
    }
}

/// The same as [`decide`], with the data remembered of the chat.
fn recall(prompter: &Prompter, turns: &Turns, shape: Shape, body: &[u8]) -> (usize, Vec<u64>) {
    let recalled = turns.recall(shape.endpoint(), black_box(body));
    match recalled.parse(shape.endpoint(), body) {
        Ok(request) => {
            let prompted = turns.prompt(prompter, &request, &recalled, body);
            (prompted.token_count(), prompted.content_hashes(16, None, None))
        }
        Err(_) => (0, Vec::new()),
    }
}
