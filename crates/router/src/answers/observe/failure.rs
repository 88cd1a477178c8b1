//! Recognises answers that are errors although their status says that all is well.
//!
//! An engine that fails after it has sent the head of its answer can only say so in the body, and some never use a status
//! for it. The forms: `error` with something in it (vLLM, SGLang), `object: error` (vLLM before 0.10), an event `error`
//! (Messages, Responses), `response.failed` or a response of status `failed`, and a reason to end such as `error` or
//! `abort`. Text that a model writes looks like none of them: quotes within a string are escaped.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::read;

static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));
static ABORT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"abort"));

/// Status of an error that does not say its own.
const UNKNOWN: u16 = 500;

/// An error that an engine sent under a status that says that all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The status that the error says, in a number or in a word; 500 if it says none.
    pub(crate) status: u16,
    /// True if nothing came before it that a client can use.
    pub(crate) is_first: bool,
}

impl Failure {
    /// True if the request is at fault, so that every engine would say the same.
    pub(crate) fn is_of_the_request(self) -> bool {
        (400..500).contains(&self.status) && self.status != 429
    }
}

/// The parts of an answer or an event by which an error is known.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    meta_info: Option<&'a RawValue>,
}

/// A choice, or what SGLang's own API says beside the text.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Ending<'a> {
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
}

/// The parts of an error that say its status, in a number or in a word.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Class<'a> {
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    status_code: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
}

/// True if a text may be an error: only then it need be read.
pub(super) fn may_be_error(text: &[u8]) -> bool {
    ERROR.find(text).is_some()
}

/// True if a text may say that an answer was aborted.
pub(super) fn may_be_aborted(text: &[u8]) -> bool {
    ABORT.find(text).is_some()
}

/// Returns the HTTP status of an error that a whole answer, or the data of an event, contains; none if it is no error.
pub(super) fn status_of(text: &[u8]) -> Option<u16> {
    // An array would be read as the fields in their order.
    let said: Fields<'_> = text.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(text).ok())??;
    let own = || std::str::from_utf8(text).ok().and_then(class_of);
    if let Some(error) = said.error.filter(|raw| is_something(raw)) {
        return Some(class_of(error.get()).or_else(own).unwrap_or(UNKNOWN));
    }
    let [kind, object, status] = [said.kind, said.object, said.status].map(read::<Cow<'_, str>>);
    let is = |value: &Option<Cow<'_, str>>, word: &str| value.as_deref() == Some(word);
    if is(&kind, "response.failed") || is(&kind, "response.error") {
        let its = read::<Fields<'_>>(said.response).and_then(|response| response.error);
        return Some(its.and_then(|error| class_of(error.get())).or_else(own).unwrap_or(UNKNOWN));
    }
    if is(&kind, "error") || is(&object, "error") {
        return Some(own().unwrap_or(UNKNOWN));
    }
    if is(&object, "response") && is(&status, "failed") {
        return Some(UNKNOWN);
    }
    if let Some(choices) = read::<Vec<Ending<'_>>>(said.choices) {
        let failed = |choice: &Ending<'_>| {
            let why = read::<Cow<'_, str>>(choice.finish_reason);
            why.is_some_and(|why| matches!(&*why, "error" | "abort" | "aborted" | "failed" | "failure"))
        };
        return choices.iter().any(failed).then_some(UNKNOWN);
    }
    if let Some(ending) = read::<Ending<'_>>(said.meta_info) {
        // SGLang gives a status where it failed, and none where it was asked to abort.
        let why = ending.finish_reason?.get();
        let class: Class<'_> = why.starts_with('{').then(|| serde_json::from_str(why).ok())??;
        return read::<Cow<'_, str>>(class.kind).filter(|kind| kind == "abort").and(number(class.status_code));
    }
    // The inside of an error, with nothing around it.
    let is_bare = read::<Cow<'_, str>>(said.message).is_some();
    own()
        .filter(|_| is_bare && read::<Class<'_>>(serde_json::from_slice(text).ok()).is_some_and(|it| it.code.is_some()))
}

/// True unless a value is null, false or empty.
fn is_something(raw: &RawValue) -> bool {
    !matches!(raw.get(), "null" | "false" | "0" | "\"\"" | "[]" | "{}")
}

/// The status that an error says.
fn class_of(error: &str) -> Option<u16> {
    let class: Class<'_> = error.trim_start().starts_with('{').then(|| serde_json::from_str(error).ok())??;
    let numbers = [class.code, class.status_code, class.status].into_iter().find_map(number);
    numbers.or_else(|| {
        let words = [class.kind, class.code, class.status].into_iter();
        words.filter_map(read::<Cow<'_, str>>).find_map(|word| meaning(&word))
    })
}

/// A number that is the status of an error, be it in a string.
fn number(raw: Option<&RawValue>) -> Option<u16> {
    raw?.get().trim_matches('"').parse().ok().filter(|status| (400..600).contains(status))
}

/// Returns the HTTP status for an error type such as `BadRequestError` or `invalid_request_error`. Words for errors of
/// the engine are many, and need not be known.
fn meaning(word: &str) -> Option<u16> {
    const WORDS: [(&str, u16); 21] = [
        ("ratelimit", 429),
        ("toomanyrequests", 429),
        ("overloaded", 503),
        ("unavailable", 503),
        ("timeout", 504),
        ("internal", 500),
        ("notfound", 404),
        ("authentication", 401),
        ("unauthorized", 401),
        ("permission", 403),
        ("forbidden", 403),
        ("unprocessable", 422),
        ("toolarge", 413),
        ("toolong", 400),
        ("badrequest", 400),
        ("invalid", 400),
        ("validation", 400),
        ("contextlength", 400),
        ("contextwindow", 400),
        ("unsupported", 400),
        ("valueerror", 400),
    ];
    let plain: String = word.chars().filter(char::is_ascii_alphanumeric).map(|it| it.to_ascii_lowercase()).collect();
    WORDS.iter().find(|(known, _)| plain.contains(known)).map(|(_, status)| *status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_the_words_of_all_engines() {
        for (text, status) in [
            (
                r#"{"error": {"message": "EngineCore died", "type": "InternalServerError", "param": null, "code": 500}}"#,
                500,
            ),
            (
                r#"{"error":{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}}"#,
                400,
            ),
            (r#"{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}"#, 400),
            (r#" { "object" : "error" , "message" : "x" , "type" : "InternalServerError" , "code" : "500" } "#, 500),
            (r#"{"message":"x","type":"InternalServerError","param":null,"code":500}"#, 500),
            (r#"{"error":{"message":"the input is too long"}}"#, 500),
            (r#"{"error":"it broke"}"#, 500),
            (r#"{"error":"too long","code":400}"#, 400),
            (r#"{"error":true,"status":503}"#, 503),
            (r#"{"error":{"type":"invalid_request_error","message":"x","code":"context_length_exceeded"}}"#, 400),
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#, 503),
            (r#"{"type":"error","error":{"type":"internal_error","message":"x"}}"#, 500),
            (r#"{"type":"error","error":{"type":"invalid_request_error","message":"x"}}"#, 400),
            (r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#, 429),
            (r#"{"type":"error","code":"server_error","message":"x","param":null,"sequence_number":2}"#, 500),
            (r#"{"type":"error","code":"invalid_prompt","message":"x","param":null}"#, 400),
            (r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error"}}}"#, 500),
            (r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"invalid_prompt"}}}"#, 400),
            (r#"{"type":"response.failed","response":{"status":"failed","error":null}}"#, 500),
            (r#"{"id":"resp_1","object":"response","status":"failed","error":null}"#, 500),
            (
                r#"{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error","message":"x"}}"#,
                500,
            ),
            (r#"{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#, 500),
            (r#"{"choices":[{"index":0,"text":"","finish_reason":"abort"}],"usage":null}"#, 500),
            (r#"{"choices":[],"error":{"code":502,"message":"x"}}"#, 502),
            (r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"full","status_code":503}}}"#, 503),
            (
                r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"too long","status_code":400}}}"#,
                400,
            ),
        ] {
            assert_eq!(status_of(text.as_bytes()), Some(status), "{text}");
        }
    }

    #[test]
    fn what_is_no_error() {
        for text in [
            r#"{"error":null,"choices":[{"delta":{"content":"a"}}]}"#,
            r#"{"error":{},"choices":[]}"#,
            r#"{"error":"","choices":[]}"#,
            r#"{"error":false}"#,
            r#"{"id":"resp_1","object":"response","status":"completed","error":null,"output":[]}"#,
            r#"{"type":"response.created","response":{"status":"in_progress","error":null}}"#,
            r#"{"type":"response.completed","response":{"status":"completed","error":null}}"#,
            r#"{"choices":[{"delta":{"content":"{\"error\": {\"code\": 500}}"},"finish_reason":null}]}"#,
            r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"message":{"tool_calls":[{"type":"error","error":"x"}]},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[]}"#,
            r#"{"text":"a","meta_info":{"finish_reason":{"type":"abort"}}}"#,
            r#"{"text":"a","meta_info":{"finish_reason":null}}"#,
            r#"{"type":"message_start","message":{"content":[]},"code":500}"#,
            r#"{"message":"all is well"}"#,
            r#"{"object":"list","data":[{"object":"error"}]}"#,
            r#"["error", {"code": 500}]"#,
            r#"[{"error":{"code":500}}]"#,
            "error",
            "",
        ] {
            assert_eq!(status_of(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn whose_fault_it_is() {
        let is_of_the_request = |status| Failure { status, is_first: true }.is_of_the_request();
        assert!([400, 404, 413, 422].into_iter().all(is_of_the_request));
        assert!(![429, 500, 503, 529].into_iter().any(is_of_the_request));
    }
}
