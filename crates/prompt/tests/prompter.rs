//! Tests from bodies of requests to tokens.

use std::path::PathBuf;

use kvatlas_prompt::{Dialect, Endpoint, Engine, Library, Options, PromptFailure, PromptTokens, Prompter, Request};

fn model(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR")))
}

fn open(name: &str) -> Prompter {
    Prompter::open(model(name), Options { text: true, ..Options::default() }).unwrap()
}

fn ask(prompter: &Prompter, endpoint: Endpoint, body: &str) -> PromptTokens {
    prompter.prompt(&Request::parse(endpoint, body.as_bytes()).unwrap())
}

#[track_caller]
fn text(prompter: &Prompter, endpoint: Endpoint, body: &str) -> String {
    let prompted = ask(prompter, endpoint, body);
    assert_eq!((prompted.why_not, prompted.whole), (None, true), "{prompted:?}");
    assert_eq!(prompted.prompt_tokens as usize, prompted.tokens().len());
    prompted.text
}

const HI: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";

#[test]
fn a_chat() {
    let prompter = open("byte_level");
    assert!(prompter.notes().is_empty(), "{:?}", prompter.notes());
    let body = r#"{"model": "m", "messages": [{"role": "user", "content": "hi"}]}"#;
    assert_eq!(text(&prompter, Endpoint::Chat, body), HI);
    let tokens = ask(&prompter, Endpoint::Chat, body).tokens().to_vec();
    let same = serde_json::json!({"prompt": HI, "add_special_tokens": false}).to_string();
    assert_eq!(ask(&prompter, Endpoint::Completions, &same).tokens(), tokens);
    // Both libraries give the same.
    let common = Prompter::open(model("byte_level"), Options { library: Library::Common, ..Options::default() });
    assert_eq!(ask(&common.unwrap(), Endpoint::Chat, body).tokens(), tokens);
}

#[test]
fn prompts_of_completions() {
    let prompter = open("metaspace");
    let tokens = |body: &str| ask(&prompter, Endpoint::Completions, body);
    let with = tokens(r#"{"prompt": "some words"}"#);
    let without = tokens(r#"{"prompt": "some words", "add_special_tokens": false}"#);
    assert_eq!(with.tokens()[0], 1);
    assert_eq!(with.tokens()[1..], *without.tokens());
    for (body, expected, prompts) in [
        (r#"{"prompt": [1, 2, 3]}"#, &[1, 2, 3][..], 1),
        (r#"{"prompt": [[1, 2], [3]]}"#, &[1, 2], 2),
        (r#"{"prompt": ["some words", "b", "c"]}"#, with.tokens(), 3),
    ] {
        let prompted = tokens(body);
        assert_eq!((prompted.tokens(), prompted.prompts), (expected, prompts), "{body}");
    }
    assert_eq!(ask(&prompter, Endpoint::Embeddings, r#"{"input": "some words"}"#).tokens(), with.tokens());
}

/// Truncation: without a side the tokenizer cuts, as the library itself does; with a side the tokens are cut.
#[test]
fn prompts_that_are_cut() {
    let prompter = open("metaspace");
    let words = "some words that are more than a few tokens";
    let mut library = tokenizers::Tokenizer::from_file(model("metaspace").join("tokenizer.json")).unwrap();
    let all = library.encode_fast(words, true).unwrap().get_ids().to_vec();
    for (endpoint, field, direction) in [
        (Endpoint::Completions, "prompt", tokenizers::TruncationDirection::Left),
        (Endpoint::Embeddings, "input", tokenizers::TruncationDirection::Right),
    ] {
        for most in [1, 2, 3, 5, all.len() - 1, all.len(), all.len() + 1] {
            let cut = tokenizers::TruncationParams { max_length: most, direction, ..Default::default() };
            library.with_truncation(Some(cut)).unwrap();
            let body = |more: &str| format!(r#"{{"{field}": "{words}", "truncate_prompt_tokens": {most}{more}}}"#);
            let expected = library.encode_fast(words, true).unwrap().get_ids().to_vec();
            assert_eq!(ask(&prompter, endpoint, &body("")).tokens(), expected, "{endpoint:?} {most}");
            let kept = most.min(all.len());
            let left = ask(&prompter, endpoint, &body(r#", "truncation_side": "left""#));
            assert_eq!(left.tokens(), &all[all.len() - kept..]);
            let right = ask(&prompter, endpoint, &body(r#", "truncation_side": "right""#));
            assert_eq!(right.tokens(), &all[..kept]);
        }
        let whole = ask(&prompter, endpoint, &format!(r#"{{"{field}": "{words}", "truncate_prompt_tokens": -1}}"#));
        assert_eq!(whole.tokens(), all);
    }
}

#[test]
fn other_kinds_of_chats() {
    let prompter = open("byte_level");
    for (endpoint, body) in [
        (Endpoint::Responses, r#"{"input": "hi"}"#),
        (Endpoint::Responses, r#"{"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}"#),
        (Endpoint::Messages, r#"{"messages": [{"role": "user", "content": "hi"}]}"#),
        (Endpoint::Messages, r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}"#),
        (Endpoint::Embeddings, r#"{"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": true}"#),
    ] {
        assert_eq!(text(&prompter, endpoint, body), HI, "{body}");
    }
    let system = "<|im_start|>system\nbe kind<|im_end|>\n".to_owned() + HI;
    for (endpoint, body) in [
        (Endpoint::Responses, r#"{"input": "hi", "instructions": "be kind"}"#),
        (Endpoint::Messages, r#"{"system": "be kind", "messages": [{"role": "user", "content": "hi"}]}"#),
        (
            Endpoint::Messages,
            r#"{"system": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
                "messages": [{"role": "user", "content": "hi"}]}"#,
        ),
    ] {
        assert_eq!(text(&prompter, endpoint, body), system, "{body}");
    }
}

/// A template that writes all its inputs.
const SHOW: &str = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson }}";

#[test]
fn tools_of_all_kinds_are_those_of_a_chat() {
    let options = Options { chat_template: Some(SHOW.into()), text: true, ..Options::default() };
    let prompter = Prompter::open(model("byte_level"), options).unwrap();
    let chat = r#"{
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "r"}
        ],
        "tools": [{"type": "function", "function": {"parameters": {"type": "object"}, "name": "f"}}]
    }"#;
    let expected = concat!(
        r#"{"role": "user", "content": "q"}"#,
        "\n",
        r#"{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"}]}"#,
        "\n",
        r#"{"role": "tool", "content": "r", "tool_call_id": "1"}"#,
        "\n",
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}}}]"#,
    );
    assert_eq!(text(&prompter, Endpoint::Chat, chat), expected);
    let responses = r#"{
        "input": [
            {"type": "message", "role": "user", "content": "q"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": 1}"},
            {"type": "function_call_output", "call_id": "1", "output": "r"}
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    }"#;
    // Chats have the fields of calls in the order of their type; calls of Responses keep theirs.
    let calls = expected.replace(r#"{"arguments": {"a": 1}, "name": "f"}"#, r#"{"name": "f", "arguments": {"a": 1}}"#);
    assert_eq!(text(&prompter, Endpoint::Responses, responses), calls);
    let messages = r#"{
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]}]}
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}]
    }"#;
    assert_eq!(text(&prompter, Endpoint::Messages, messages), expected);
}

#[test]
fn chats_of_sglang() {
    let options =
        Options { chat_template: Some(SHOW.into()), text: true, dialect: Dialect::Sglang, ..Options::default() };
    let prompter = Prompter::open(model("byte_level"), options).unwrap();
    let body = r#"{"messages": [{"role": "user", "content": ["a", "b"]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "x": 1}}], "tool_choice": "CHOICE"}"#;
    let user = "{\"role\": \"user\", \"content\": \"a b\"}\n";
    let tool = r#"[{"type": "function", "function": {"name": "f", "parameters": {}, "description": null}, "defer_loading": null}]"#;
    assert_eq!(text(&prompter, Endpoint::Chat, &body.replace("CHOICE", "auto")), user.to_owned() + tool);
    assert_eq!(text(&prompter, Endpoint::Chat, &body.replace("CHOICE", "none")), user.to_owned() + "null");
}

#[test]
fn variables_of_the_engine_and_of_the_request() {
    let source = "{{ a }} {{ b }} {{ add_generation_prompt }} {{ reasoning_effort }}";
    let options = Options {
        chat_template: Some(source.into()),
        template_kwargs: Some(r#"{"a": 1, "b": 2}"#.into()),
        text: true,
        ..Options::default()
    };
    let prompter = Prompter::open(model("byte_level"), options).unwrap();
    let body = r#"{"messages": [{"role": "user"}], "chat_template_kwargs": {"b": true}, "add_generation_prompt": false, "reasoning_effort": "low"}"#;
    assert_eq!(text(&prompter, Endpoint::Chat, body), "1 True False low");
}

#[test]
fn a_message_that_goes_on() {
    let prompter = open("byte_level");
    let body = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am"}],
        "continue_final_message": true, "add_generation_prompt": false}"#;
    assert_eq!(text(&prompter, Endpoint::Chat, body), HI.to_owned() + "I am");
}

/// SGLang closes the last message, and appends the tokens of the answer's beginning.
#[test]
fn an_answer_that_goes_on_in_sglang() {
    let options = Options { text: true, dialect: Dialect::Sglang, ..Options::default() };
    let prompter = Prompter::open(model("metaspace"), options).unwrap();
    let tokens = |text: &str, special: bool| {
        let body = serde_json::json!({"prompt": text, "add_special_tokens": special}).to_string();
        let vllm = open("metaspace");
        ask(&vllm, Endpoint::Completions, &body).tokens().to_vec()
    };
    let chat = |role: &str, content: &str, more: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "hi"}}, {{"role": "{role}", "content": {content}}}]{more}}}"#
        )
    };
    let goes_on = r#", "continue_final_message": true, "add_generation_prompt": false"#;
    let made = ask(&prompter, Endpoint::Chat, &chat("assistant", r#""I am""#, goes_on));
    let (before, answer) = (tokens(HI, false), tokens("I am", true));
    // The beginning is tokenized separately, without the token at the beginning of a text.
    assert_eq!(made.tokens(), [&before[..], &answer[1..]].concat());
    assert_eq!((answer[0], made.why_not, made.whole), (1, None, true));
    assert_eq!(made.text, HI.to_owned() + "I am");
    for (role, content, more, expected) in [
        ("assistant", r#""""#, goes_on, HI.to_owned()),
        ("assistant", "null", goes_on, HI.to_owned()),
        ("user", r#""b""#, goes_on, HI.replace("hi<|im_end|>\n", "hi<|im_end|>\n<|im_start|>user\nb<|im_end|>\n")),
        ("assistant", r#""b""#, "", HI.replace("hi<|im_end|>\n", "hi<|im_end|>\n<|im_start|>user\nb<|im_end|>\n")),
    ] {
        let made = ask(&prompter, Endpoint::Chat, &chat(role, content, more));
        assert_eq!(made.text, expected, "{role} {content} {more}");
        assert_eq!(made.tokens(), tokens(&expected, false));
    }
    // Nothing is known after an image, including the answer.
    let image = r#"[{"type": "image_url", "image_url": {"url": "x"}}]"#;
    let body = chat("user", image, goes_on);
    let body = body.replace("]}]", r#"]}, {"role": "assistant", "content": "I am"}]"#);
    let made = ask(&prompter, Endpoint::Chat, &body);
    assert_eq!((made.why_not, made.text.contains("I am")), (Some(PromptFailure::Image), false));
}

#[test]
fn fields_that_an_engine_does_not_have() {
    let source = "{% for m in messages %}{{ m.role }} {% endfor %}{{ documents }} {{ add_generation_prompt }}";
    let open = |dialect| {
        let options = Options { chat_template: Some(source.into()), text: true, dialect, ..Options::default() };
        Prompter::open(model("metaspace"), options).unwrap()
    };
    let (vllm, sglang) = (open(Dialect::Vllm32), open(Dialect::Sglang));
    let all = r#""documents": [1], "add_generation_prompt": false, "add_special_tokens": true, "truncate_prompt_tokens": 2,
        "truncation_side": "left", "continue_final_message": false"#;
    let messages = r#""messages": [{"role": "user", "content": "hi"}]"#;
    let chat = format!("{{{messages}, {all}}}");
    let made = ask(&vllm, Endpoint::Chat, &chat);
    assert_eq!((&*made.text, made.token_count()), ("user [1] False", 2));
    assert!(!made.is_alike(chat.as_bytes()));
    // SGLang has no placeholders, and vLLM has them for chats only.
    let input = r#""input": "hi""#;
    for (prompter, endpoint, given) in [
        (&sglang, Endpoint::Chat, messages),
        (&sglang, Endpoint::Messages, messages),
        (&sglang, Endpoint::Responses, input),
        (&vllm, Endpoint::Messages, messages),
        (&vllm, Endpoint::Responses, input),
    ] {
        let own = r#""chat_template": "x", "continue_final_message": true"#;
        let own = if endpoint == Endpoint::Chat { r#""chat_template": "x""# } else { own };
        let made = ask(prompter, endpoint, &format!("{{{given}, {all}, {own}}}"));
        assert_eq!((&*made.text, made.why_not), ("user None True", None), "{endpoint:?}");
        assert_eq!(made.tokens(), ask(prompter, endpoint, &format!("{{{given}}}")).tokens());
    }
    // A chat to be embedded is not answered.
    assert_eq!(ask(&vllm, Endpoint::Embeddings, &format!("{{{messages}}}")).text, "user None False");
    // A chat may carry its tokens as well, which only SGLang accepts.
    let both = format!(r#"{{{messages}, "input_ids": [5, 6]}}"#);
    assert_eq!(ask(&sglang, Endpoint::Chat, &both).tokens(), [5, 6]);
    assert_eq!(ask(&vllm, Endpoint::Chat, &both).text, "user None True");
    assert!(!ask(&vllm, Endpoint::Chat, &both).is_alike(both.as_bytes()));
}

#[test]
fn prompts_that_are_given_as_tokens() {
    let prompter = Prompter::without_tokenizer(Options::default()).unwrap();
    let made = |endpoint, body: &str| ask(&prompter, endpoint, body);
    for (endpoint, name) in
        [(Endpoint::Generate, "input_ids"), (Endpoint::Tokens, "token_ids"), (Endpoint::ChatTokens, "tokens")]
    {
        let given = |ids: &str| made(endpoint, &format!(r#"{{"messages": [], "{name}": {ids}, "text": "a"}}"#));
        let plain = given("[1, 2, 3]");
        assert_eq!((plain.tokens(), plain.why_not, plain.whole, plain.prompts), (&[1, 2, 3][..], None, true, 1));
        assert!(plain.is_alike(b""), "no field for chats matters");
        for wrong in
            ["[]", "[-1, 2]", "[4294967296]", "[1.5]", "[1.0]", "[true]", "[null]", "[[[1]]]", "[[]]", "{}", "7"]
        {
            let read = given(wrong);
            assert_eq!((read.token_count(), read.why_not), (0, Some(PromptFailure::NoPrompt)), "{endpoint:?} {wrong}");
        }
    }
    // Only SGLang accepts a list of prompts there.
    let list = made(Endpoint::Generate, r#"{"input_ids": [[1, 2], [3]]}"#);
    assert_eq!((list.tokens(), list.prompts), (&[1, 2][..], 2));
    for (endpoint, body) in [
        (Endpoint::Tokens, r#"{"token_ids": [[1, 2], [3]]}"#),
        (Endpoint::ChatTokens, r#"{"tokens": [[1]], "messages": []}"#),
        (Endpoint::Tokens, r#"{"prompt": [1], "input_ids": [1], "tokens": [1]}"#),
    ] {
        assert_eq!(made(endpoint, body).why_not, Some(PromptFailure::NoPrompt), "{body}");
    }
    for (body, why_not) in [
        (r#"{"text": "a"}"#, PromptFailure::NoTokenizer),
        (r#"{"text": ["a", "b"], "input_ids": null}"#, PromptFailure::NoTokenizer),
        (r#"{"input_embeds": [[0.5]]}"#, PromptFailure::Embeds),
        (r#"{"input_ids": [1], "image_data": "x"}"#, PromptFailure::Image),
        (r#"{"input_ids": [1], "audio_data": ["x"]}"#, PromptFailure::Audio),
        (r#"{"input_ids": [1], "session_params": {"id": "s"}}"#, PromptFailure::Stored),
        (r#"{"text": 5}"#, PromptFailure::NoPrompt),
        ("{}", PromptFailure::NoPrompt),
    ] {
        assert_eq!(made(Endpoint::Generate, body).why_not, Some(why_not), "{body}");
    }
    let asked = |endpoint, body: &'static str| Request::parse(endpoint, body.as_bytes()).unwrap();
    let native = r#"{"sampling_params": {"max_new_tokens": 7, "max_tokens": 8, "n": 3}, "max_tokens": 9,
        "lora_path": "ada", "cache_salt": ["s", "t"]}"#;
    let generate = asked(Endpoint::Generate, native);
    assert_eq!((generate.max_tokens, generate.answers, generate.adapter.as_deref()), (Some(7), 3, Some("ada")));
    assert_eq!(generate.cache_salt.as_deref(), Some("s"));
    let tokens = asked(Endpoint::Tokens, native);
    assert_eq!((tokens.max_tokens, tokens.answers, tokens.adapter, tokens.cache_salt), (Some(8), 3, None, None));
    assert_eq!(asked(Endpoint::ChatTokens, native).max_tokens, Some(9));
    let list = r#"{"sampling_params": [{"max_new_tokens": 5}, {"max_new_tokens": 6}], "lora_path": [null, "a"]}"#;
    let list = asked(Endpoint::Generate, list);
    assert_eq!((list.max_tokens, list.adapter), (Some(5), None));
    let nothing = r#"{"input_ids": [1, 2], "image_data": null, "video_data": [], "session_params": null}"#;
    assert_eq!(made(Endpoint::Generate, nothing).tokens(), [1, 2]);
    let picture = r#"{"tokens": [1], "messages": [{"role": "user", "content": [{"type": "image_url",
        "image_url": {"url": "http://x/a.png"}}]}]}"#;
    assert_eq!(made(Endpoint::ChatTokens, picture).why_not, Some(PromptFailure::OtherPart));
    assert_eq!(
        made(Endpoint::Tokens, r#"{"token_ids": [1], "content_parts": [{"type": "image_url"}]}"#).why_not,
        Some(PromptFailure::OtherPart)
    );
}

#[test]
fn tokens_end_where_an_engine_computes_them_or_puts_what_is_not_text() {
    let prompter = Prompter::without_tokenizer(Options::default()).unwrap();
    for (endpoint, body, tokens, why_not) in [
        (Endpoint::Generate, r#"{"return_logprob": true}"#, 4, None),
        (Endpoint::Generate, r#"{"return_logprob": true, "logprob_start_len": -1}"#, 4, None),
        (Endpoint::Generate, r#"{"return_logprob": true, "logprob_start_len": 3}"#, 3, None),
        (Endpoint::Generate, r#"{"return_logprob": [true], "logprob_start_len": [2]}"#, 2, None),
        (Endpoint::Generate, r#"{"return_logprob": true, "logprob_start_len": 99}"#, 4, None),
        (Endpoint::Generate, r#"{"return_logprob": false, "logprob_start_len": 0}"#, 4, None),
        (Endpoint::Tokens, r#"{"features": null}"#, 4, None),
        (Endpoint::Tokens, r#"{"features": {"mm_hashes": {}, "mm_placeholders": {}}}"#, 4, None),
        (
            Endpoint::Tokens,
            r#"{"features": {"mm_placeholders": {"image": [{"offset": 3, "length": 1}, {"offset": 1, "length": 2}]}}}"#,
            1,
            Some(PromptFailure::OtherPart),
        ),
        (Endpoint::Tokens, r#"{"features": {"mm_placeholders": 7}}"#, 0, Some(PromptFailure::OtherPart)),
    ] {
        let body = body.replacen('{', r#"{"input_ids": [1, 2, 3, 4], "token_ids": [1, 2, 3, 4], "#, 1);
        let made = ask(&prompter, endpoint, &body);
        assert_eq!((made.token_count(), made.why_not), (tokens, why_not), "{body}");
        assert_eq!((made.prompt_tokens, made.whole), (4, tokens == 4), "all of them are computed: {body}");
    }
    let skips = |endpoint, body: &str| {
        let request = Request::parse(endpoint, body.as_bytes()).unwrap();
        Engine::Sglang.skips_cache(&request)
    };
    assert!(skips(Endpoint::Generate, r#"{"return_logprob": true, "logprob_start_len": 0}"#));
    assert!(!skips(Endpoint::Generate, r#"{"return_logprob": true, "logprob_start_len": 5}"#));
    assert!(skips(Endpoint::Tokens, r#"{"sampling_params": {"prompt_logprobs": 0}}"#));
    assert!(skips(Endpoint::Tokens, r#"{"sampling_params": {"skip_reading_prefix_cache": true}}"#));
    let says_no = r#"{"sampling_params": {"skip_reading_prefix_cache": false, "prompt_logprobs": 1}}"#;
    assert!(!skips(Endpoint::Tokens, says_no));
    assert!(!skips(Endpoint::Tokens, r#"{"prompt_logprobs": 1}"#), "it is no field of that route");
}

#[test]
fn tokens_end_at_what_is_not_text() {
    let parts = "{% for m in messages %}[{% for c in m.content %}{{ c.text if c.type == 'text' else '<pic>' }}{% endfor %}]{% endfor %}";
    let lines = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    for (template, body, expected, why_not) in [
        (
            parts,
            r#"[{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "c"}]}, {"role": "user", "content": "d"}]"#,
            "[a][b",
            PromptFailure::Image,
        ),
        // Media come before the text where the content is one string.
        (
            lines,
            r#"[{"role": "user", "content": "a"}, {"role": "user", "content": ["b", {"type": "input_audio", "input_audio": {}}]}]"#,
            "[a][",
            PromptFailure::Audio,
        ),
        (lines, r#"[{"role": "user", "content": [{"type": "video_url"}]}]"#, "[", PromptFailure::Video),
        (lines, r#"[{"role": "user", "content": [{"type": "file"}]}]"#, "[", PromptFailure::OtherPart),
        (lines, r#"[{"role": "user", "content": [{"image_url": "u"}]}]"#, "[", PromptFailure::Image),
    ] {
        let options = Options { chat_template: Some(template.into()), text: true, ..Options::default() };
        let prompter = Prompter::open(model("byte_level"), options).unwrap();
        let prompted = ask(&prompter, Endpoint::Chat, &format!(r#"{{"messages": {body}}}"#));
        assert_eq!((prompted.text.as_str(), prompted.why_not), (expected, Some(why_not)), "{body}");
        assert!(!prompted.whole && !prompted.tokens().is_empty());
        assert!(prompted.prompt_tokens as usize > prompted.tokens().len());
    }
}

#[test]
fn reasons() {
    let prompter = open("byte_level");
    let user = r#""messages": [{"role": "user", "content": "hi"}]"#;
    for (endpoint, body, expected) in [
        (Endpoint::Chat, "{}".to_owned(), PromptFailure::NoPrompt),
        (Endpoint::Chat, r#"{"messages": []}"#.to_owned(), PromptFailure::BadMessages),
        (Endpoint::Chat, r#"{"messages": [{"content": "hi"}]}"#.to_owned(), PromptFailure::BadMessages),
        (Endpoint::Chat, r#"{"messages": [{"role": "user", "content": 3}]}"#.to_owned(), PromptFailure::BadMessages),
        (Endpoint::Chat, r#"{"messages": "hi"}"#.to_owned(), PromptFailure::BadMessages),
        (Endpoint::Chat, format!(r#"{{{user}, "tools": 3}}"#), PromptFailure::BadMessages),
        (Endpoint::Chat, format!(r#"{{{user}, "chat_template": "x"}}"#), PromptFailure::OwnTemplate),
        (Endpoint::Completions, "{}".to_owned(), PromptFailure::NoPrompt),
        (Endpoint::Completions, r#"{"prompt": []}"#.to_owned(), PromptFailure::NoPrompt),
        (Endpoint::Completions, r#"{"prompt": [1, -2]}"#.to_owned(), PromptFailure::NoPrompt),
        (Endpoint::Completions, r#"{"prompt": {"a": 1}}"#.to_owned(), PromptFailure::NoPrompt),
        (Endpoint::Completions, r#"{"prompt_embeds": "x"}"#.to_owned(), PromptFailure::Embeds),
        (Endpoint::Responses, r#"{"input": "a", "previous_response_id": "r"}"#.to_owned(), PromptFailure::Stored),
        (Endpoint::Responses, r#"{"input": [{"type": "reasoning"}]}"#.to_owned(), PromptFailure::OtherItem),
        (
            Endpoint::Messages,
            r#"{"messages": [{"role": "user", "content": [{"type": "document"}]}]}"#.to_owned(),
            PromptFailure::OtherItem,
        ),
    ] {
        let prompted = ask(&prompter, endpoint, &body);
        assert_eq!(prompted.why_not, Some(expected), "{body}");
        assert!(prompted.tokens().is_empty() && !prompted.whole && prompted.prompt_tokens > 0);
    }
    let refusing = Options { chat_template: Some("{{ raise_exception('no') }}".into()), ..Options::default() };
    let refusing = Prompter::open(model("byte_level"), refusing).unwrap();
    assert_eq!(ask(&refusing, Endpoint::Chat, &format!("{{{user}}}")).why_not, Some(PromptFailure::TemplateRefuses));
    let short = Prompter::open(model("byte_level"), Options { max_bytes: 10, ..Options::default() }).unwrap();
    assert_eq!(ask(&short, Endpoint::Chat, &format!("{{{user}}}")).why_not, Some(PromptFailure::TooLong));
    for body in ["", "[]", "3", "{", "null", "{\"a\": }", "\u{feff}{}"] {
        assert_eq!(Request::parse(Endpoint::Chat, body.as_bytes()).unwrap_err(), PromptFailure::NotJson, "{body}");
    }
}

#[test]
fn without_a_tokenizer_there_is_text() {
    let prompter = Prompter::without_tokenizer(Options { text: true, ..Options::default() }).unwrap();
    let body = r#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": ["a", "b"]}]}"#;
    let prompted = ask(&prompter, Endpoint::Chat, body);
    assert_eq!((prompted.text.as_str(), prompted.why_not), ("system\ns\nuser\nab\n", Some(PromptFailure::NoTokenizer)));
    let prompted = ask(&prompter, Endpoint::Completions, r#"{"prompt": "once upon"}"#);
    assert_eq!((prompted.text.as_str(), prompted.prompt_tokens), ("once upon", 3));
    assert_eq!(ask(&prompter, Endpoint::Completions, r#"{"prompt": [4, 5]}"#).tokens(), [4, 5]);
}

#[test]
fn what_routing_needs() {
    let body = r#"{"model": "a\u00e4", "stream": true, "stream_options": {"include_usage": true}, "n": 3, "best_of": 5,
        "max_tokens": 7, "max_completion_tokens": 9, "priority": -2, "cache_salt": "s", "user": "u", "session_id": "i",
        "n": 4, "unknown": [{}]}"#;
    let request = Request::parse(Endpoint::Chat, body.as_bytes()).unwrap();
    assert_eq!(request.model.as_deref(), Some("aä"));
    assert!(request.stream && request.include_usage);
    assert_eq!((request.answers, request.max_tokens, request.priority), (5, Some(9), -2));
    let session = request.session.session_id.map(|raw| raw.get());
    assert_eq!((request.cache_salt.as_deref(), session), (Some("s"), Some(r#""i""#)));
    // Values that no engine accepts count as missing: engines report the error.
    let body = r#"{"model": 3, "stream": "yes", "n": -1, "max_tokens": 1.5, "priority": "high", "cache_salt": "", "user": null}"#;
    let request = Request::parse(Endpoint::Chat, body.as_bytes()).unwrap();
    assert_eq!((request.model, request.stream, request.answers, request.max_tokens), (None, false, 1, None));
    assert_eq!((request.priority, request.cache_salt), (0, None));
    let of = |body: &'static [u8]| Request::parse(Endpoint::Responses, body).unwrap();
    let request = of(br#"{"input": "x", "previous_response_id": "resp_1", "background": true}"#);
    assert_eq!((request.previous_response.as_deref(), request.in_background), (Some("resp_1"), true));
    for body in [&br#"{"previous_response_id": null}"#[..], b"{}", br#"{"previous_response_id": 5, "background": 1}"#] {
        let request = of(body);
        assert_eq!((request.previous_response, request.in_background), (None, false));
    }
}

#[test]
fn salts_and_adapters_have_other_hashes() {
    let prompter = open("byte_level");
    let prompted = ask(&prompter, Endpoint::Completions, r#"{"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9]}"#);
    let plain = prompted.content_hashes(4, None, None);
    assert_eq!(plain, [14_643_705_804_678_351_452, 16_777_012_769_546_811_212]);
    assert_ne!(prompted.content_hashes(4, Some("a"), None), plain);
    assert_ne!(prompted.content_hashes(4, None, Some("a")), plain);
    assert!(prompted.content_hashes(16, None, None).is_empty());
}

#[test]
fn malformed_bodies_do_no_harm() {
    let prompter = open("byte_level");
    let body = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a\u00e4\ud83d\ude00"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": [1]}"}}], "content": null}],
        "tools": [{"type": "function", "function": {"name": "f"}}], "input": [{"type": "message", "role": "x", "content": "y"}],
        "system": [{"type": "text", "text": "s"}], "prompt": ["a", "b"], "chat_template_kwargs": {"x": 1}, "n": 2}"#;
    let endpoints =
        [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages, Endpoint::Embeddings];
    let mut seed = 7_u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let odd =
        [&b"\""[..], b"{", b"}", b"[", b"]", b",", b":", b"null", b"\\u", b"\xff", b"-1", b"1e999", b"\\ud800", b"\0"];
    let mut parsed = 0;
    for _ in 0..20_000 {
        let mut bytes = body.as_bytes().to_vec();
        for _ in 0..=next(3) {
            let (from, length) = (next(bytes.len()), next(12));
            let to = bytes.len().min(from + length);
            bytes.splice(from..to, odd[next(odd.len())].iter().copied());
        }
        for endpoint in endpoints {
            if let Ok(request) = Request::parse(endpoint, &bytes) {
                let prompted = prompter.prompt(&request);
                assert!(prompted.whole == prompted.why_not.is_none());
                parsed += 1;
            }
        }
    }
    assert!(parsed > 1000, "{parsed}");
    // Deep nesting gives a reason instead of a stack overflow.
    let deep = format!(r#"{{"messages": {}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(ask(&prompter, Endpoint::Chat, &deep).why_not, Some(PromptFailure::BadMessages));
    let deep = deep.replace("messages", "messages\": [{\"role\": \"user\"}], \"tools");
    assert_eq!(ask(&prompter, Endpoint::Chat, &deep).why_not, Some(PromptFailure::BadMessages));
}
