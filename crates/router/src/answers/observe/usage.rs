//! Extraction of token counts from the `usage` object of an answer, at any place of the answer.

use std::sync::LazyLock;

use memchr::memmem::{self, Finder};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::read;

const NAME: &[u8] = b"\"usage\"";
static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(NAME));

/// Maximum size of a `usage` object (token counts in an answer) that is read, in bytes.
const MOST: usize = 8 << 10;

/// Maximum number of `usage` objects (token counts) in an answer. With more, the object with the answer's own counts
/// cannot be identified, and the answer counts as one without token counts.
const MOST_OBJECTS: u32 = 16;

/// Token counts of a request, as reported by the engine. Each count is None if the engine has not reported it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Number of prompt tokens, cached ones included.
    pub(crate) prompt: Option<u32>,
    /// Number of prompt tokens found in the engine's cache.
    pub(crate) cached: Option<u32>,
    /// Number of generated tokens.
    pub(crate) output: Option<u32>,
}

/// Numbers from the `usage` objects found so far. Streams of `/v1/messages` have several `usage` objects, each with
/// some of the numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct UsageNumbers {
    /// Number of prompt tokens: value of `prompt_tokens`, or of `input_tokens`.
    prompt: Option<u32>,
    /// Value of `cached_tokens` in the details of the prompt tokens; these tokens are included in `prompt`.
    cached: Option<u32>,
    /// Value of `cache_read_input_tokens`, which is not included in `input_tokens`.
    read: Option<u32>,
    /// Value of `cache_creation_input_tokens`, which is not included in `input_tokens`.
    created: Option<u32>,
    output: Option<u32>,
}

impl UsageNumbers {
    /// Copies each number that is present in `new`, in place of the number stored before.
    pub(super) fn merge(&mut self, new: Self) {
        let Self { prompt, cached, read, created, output } = new;
        self.prompt = prompt.or(self.prompt);
        self.cached = cached.or(self.cached);
        self.read = read.or(self.read);
        self.created = created.or(self.created);
        self.output = output.or(self.output);
    }

    /// Returns the token counts with OpenAI's meaning, where prompt tokens include the cached ones.
    pub(super) fn usage(self) -> Usage {
        let (prompt, cached) = match (self.prompt, self.cached, self.read.or(self.created)) {
            (Some(input), None, Some(_)) => {
                let (read, created) = (self.read.unwrap_or(0), self.created.unwrap_or(0));
                (Some(input.saturating_add(read).saturating_add(created)), Some(read))
            }
            (prompt, cached, _) => (prompt, cached.or(self.read)),
        };
        // Whatever an engine makes of it: no more can be cached than there is.
        let cached = cached.map(|cached| prompt.map_or(cached, |prompt| cached.min(prompt)));
        Usage { prompt, cached, output: self.output }
    }
}

/// Parses the last `usage` object in a complete text; None if the text has no valid one.
pub(super) fn read_usage(text: &[u8]) -> Option<UsageNumbers> {
    let at = memmem::rfind(text, NAME)?;
    parse(&text[at + NAME.len()..]).ok()
}

/// True if a chunk of a stream has token counts (`usage`), no error, and no choices (missing, null or empty).
pub(super) fn is_usage_alone(chunk: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Chunk<'a> {
        #[serde(borrow)]
        usage: Option<&'a RawValue>,
        #[serde(default)]
        choices: Option<Vec<IgnoredAny>>,
        #[serde(default)]
        error: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Chunk<'_>>(chunk).is_ok_and(|chunk| {
        chunk.usage.is_some_and(|usage| usage.get() != "null")
            && chunk.choices.is_none_or(|choices| choices.is_empty())
            && chunk.error.is_none()
    })
}

/// Finds token counts by the names that SGLang's `/generate` uses in its `meta_info`, in a complete text or in a piece
/// of one. A number at the end of a piece is left out, as it may be cut off.
pub(super) fn read_meta(text: &[u8]) -> UsageNumbers {
    let number = |name: &[u8]| {
        let value = text[memmem::rfind(text, name)? + name.len()..].trim_ascii_start().strip_prefix(b":")?;
        let value = value.trim_ascii_start();
        let end = value.iter().position(|byte| !byte.is_ascii_digit())?;
        std::str::from_utf8(&value[..end]).ok()?.parse().ok()
    };
    UsageNumbers {
        prompt: number(b"\"prompt_tokens\""),
        cached: number(b"\"cached_tokens\""),
        output: number(b"\"completion_tokens\""),
        ..UsageNumbers::default()
    }
}

/// Search for the token counts of SGLang's `meta_info` in JSON that arrives in pieces. Lists of answers are not
/// searched, as each answer of a list has its own `meta_info`.
#[derive(Debug, Default)]
pub(super) struct MetaScan {
    pub(super) told: UsageNumbers,
    /// True if the JSON text is a list; None before its first byte.
    is_list: Option<bool>,
    /// Last bytes of the text that passed, which may be the beginning of a JSON name.
    tail: Vec<u8>,
}

impl MetaScan {
    /// Maximum length of a JSON name together with its number, in bytes.
    const LONGEST: usize = 64;

    pub(super) fn pass(&mut self, data: &[u8]) {
        self.is_list = self.is_list.or_else(|| data.trim_ascii_start().first().map(|first| *first == b'['));
        if self.is_list == Some(true) {
            return;
        }
        if !self.tail.is_empty() {
            let kept = self.tail.len();
            self.tail.extend_from_slice(&data[..data.len().min(Self::LONGEST)]);
            self.told.merge(read_meta(&self.tail));
            self.tail.truncate(kept);
        }
        self.told.merge(read_meta(data));
        self.tail.extend_from_slice(&data[data.len().saturating_sub(Self::LONGEST)..]);
        self.tail.drain(..self.tail.len().saturating_sub(Self::LONGEST));
    }
}

/// Search for `usage` objects in JSON that arrives in pieces. Only the current object and a few last bytes are stored.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) told: UsageNumbers,
    /// Last bytes of the text that passed, which may be the beginning of the name `"usage"`.
    tail: [u8; NAME.len() - 1],
    tail_len: usize,
    /// Text received after the name `"usage"`, while the `usage` object is incomplete; None if no object is incomplete.
    open: Option<Vec<u8>>,
    /// Number of `usage` objects found so far.
    objects: u32,
    /// True if the last `usage` object found is already included in the number `objects`.
    is_counted: bool,
}

impl Scan {
    pub(super) fn pass(&mut self, data: &[u8]) {
        if self.is_given_up() {
            return;
        }
        if let Some(mut open) = self.open.take() {
            let room = MOST.saturating_sub(open.len());
            let more = &data[..room.min(data.len())];
            open.extend_from_slice(more);
            // Before its end, or the end of what it may have, it is not whole; nor is it known to be an object at first.
            if more.len() == room || more.contains(&b'}') || open.len() < FIRST {
                self.read(&open);
            } else {
                self.open = Some(open);
            }
        }
        // A name that began in the piece before.
        if self.tail_len > 0 {
            let mut joined = [0; 2 * (NAME.len() - 1)];
            let more = data.len().min(NAME.len() - 1);
            joined[..self.tail_len].copy_from_slice(&self.tail[..self.tail_len]);
            joined[self.tail_len..self.tail_len + more].copy_from_slice(&data[..more]);
            if let Some(at) = FINDER.find(&joined[..self.tail_len + more]) {
                self.begin(&data[at + NAME.len() - self.tail_len..]);
            }
        }
        for at in FINDER.find_iter(data) {
            if self.is_given_up() {
                break;
            }
            self.begin(&data[at + NAME.len()..]);
        }
        self.keep_tail(data);
    }

    fn is_given_up(&self) -> bool {
        self.objects > MOST_OBJECTS
    }

    /// Begins to parse a `usage` object: `text` is the text after the name `"usage"`.
    fn begin(&mut self, text: &[u8]) {
        self.is_counted = false;
        self.read(&text[..text.len().min(MOST)]);
    }

    fn read(&mut self, text: &[u8]) {
        // Others than objects, such as a token of that name, are seen at once.
        if !self.is_counted && is_object(text) {
            self.is_counted = true;
            self.objects += 1;
            if self.is_given_up() {
                self.told = UsageNumbers::default();
                return;
            }
        }
        match parse(text) {
            Ok(told) => self.told.merge(told),
            Err(UsageFault::NotWhole) if text.len() < MOST => self.open = Some(text.to_vec()),
            Err(_) => {}
        }
    }

    fn keep_tail(&mut self, data: &[u8]) {
        let most = self.tail.len();
        if data.len() >= most {
            self.tail.copy_from_slice(&data[data.len() - most..]);
            self.tail_len = most;
            return;
        }
        let keep = self.tail_len.min(most - data.len());
        self.tail.copy_within(self.tail_len - keep..self.tail_len, 0);
        self.tail[keep..keep + data.len()].copy_from_slice(data);
        self.tail_len = keep + data.len();
    }
}

/// Maximum distance from a JSON name to the start of the object that is its value, in bytes.
const FIRST: usize = 16;

/// True if the value after a JSON name is an object.
fn is_object(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start(), [b':', rest @ ..] if rest.trim_ascii_start().starts_with(b"{"))
}

/// Reason why no `usage` object could be parsed.
enum UsageFault {
    /// The text ends before the end of the `usage` object.
    NotWhole,
    /// The value of `usage` is no object, for example null.
    Other,
}

/// Parses the `usage` object at the start of `text`, which follows the name `"usage"`.
fn parse(text: &[u8]) -> Result<UsageNumbers, UsageFault> {
    let object = match text.trim_ascii_start() {
        [] => return Err(UsageFault::NotWhole),
        [b':', rest @ ..] => rest.trim_ascii_start(),
        _ => return Err(UsageFault::Other),
    };
    match object.first() {
        None => return Err(UsageFault::NotWhole),
        Some(b'{') => {}
        Some(_) => return Err(UsageFault::Other),
    }
    match serde_json::Deserializer::from_slice(object).into_iter::<Object<'_>>().next() {
        Some(Ok(object)) => Ok(object.numbers()),
        Some(Err(error)) if error.is_eof() => Err(UsageFault::NotWhole),
        _ => Err(UsageFault::Other),
    }
}

/// JSON form of a `usage` object, with the field names of all APIs. Fields of a wrong type count as missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Object<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_read_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_creation_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details<'a> {
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
}

impl Object<'_> {
    fn numbers(&self) -> UsageNumbers {
        let details = |raw| read::<Details<'_>>(raw).and_then(|details| read(details.cached_tokens));
        let prompt_tokens = read::<u32>(self.prompt_tokens);
        let cached = details(self.prompt_tokens_details).or_else(|| details(self.input_tokens_details));
        let read_tokens = read::<u32>(self.cache_read_input_tokens);
        UsageNumbers {
            prompt: prompt_tokens.or_else(|| read(self.input_tokens)),
            // Beside `prompt_tokens`, which are all of them, the names of Anthropic's mean the same as the details.
            cached: cached.or(read_tokens.filter(|_| prompt_tokens.is_some())),
            read: read_tokens,
            created: read(self.cache_creation_input_tokens),
            output: read(self.completion_tokens).or_else(|| read(self.output_tokens)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &str) -> Option<Usage> {
        read_usage(text.as_bytes()).map(UsageNumbers::usage)
    }

    #[test]
    fn the_usage_of_a_text() {
        let some = |prompt, cached, output| Some(Usage { prompt, cached, output });
        let openai =
            r#"{"usage" : {"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}}"#;
        assert_eq!(usage(openai), some(Some(5), Some(2), Some(1)));
        // Of Anthropic's, what was cached is not part of the input.
        let messages = r#"{"usage":{"input_tokens":5,"cache_read_input_tokens":160,"output_tokens":1}}"#;
        assert_eq!(usage(messages), some(Some(165), Some(160), Some(1)));
        let written = r#"{"usage":{"input_tokens":5,"cache_creation_input_tokens":60,"cache_read_input_tokens":0}}"#;
        assert_eq!(usage(written), some(Some(65), Some(0), None));
        let both = r#"{"usage":{"prompt_tokens":165,"cache_read_input_tokens":160}}"#;
        assert_eq!(usage(both), some(Some(165), Some(160), None));
        let responses = r#"{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":8},"output_tokens":2}}"#;
        assert_eq!(usage(responses), some(Some(9), Some(8), Some(2)));
        let wrong = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":80}}}"#;
        assert_eq!(usage(wrong), some(Some(9), Some(9), None));
        for none in ["{}", r#"{"usage":null}"#, r#"{"usage":{"prompt"#, r#"{"usage"#, r#"{"text":"\"usage\": {}"}"#, ""]
        {
            assert_eq!(usage(none), None, "{none}");
        }
    }

    #[test]
    fn numbers_of_sglang_are_found_however_the_text_is_cut() {
        let logprobs = "[-0.5,7,\"\\\"cached_tokens\\\": 9\"],".repeat(2000);
        let text = format!(
            r#" {{"text":"\"prompt_tokens\": 1","meta_info":{{"id":"x","finish_reason":{{"type":"length","length":8}},
            "prompt_tokens" : 1234,"output_token_logprobs":[{logprobs}null],"completion_tokens":8,"cached_tokens":1216,
            "cached_tokens_details":{{"device":1216}}}}}}"#
        );
        let expected = Usage { prompt: Some(1234), cached: Some(1216), output: Some(8) };
        for cut in [1, 2, 3, 7, 63, 64, 65, 1000, 1 << 20] {
            let mut scan = MetaScan::default();
            text.as_bytes().chunks(cut).for_each(|piece| scan.pass(piece));
            assert_eq!(scan.told.usage(), expected, "{cut}");
        }
        let mut list = MetaScan::default();
        format!("[{text}]").as_bytes().chunks(5).for_each(|piece| list.pass(piece));
        assert_eq!(list.told, UsageNumbers::default());
        for none in ["", "{}", r#"{"prompt_tokens":null,"cached_tokens":"5"}"#, r#"{"prompt_tokens":12"#] {
            assert_eq!(read_meta(none.as_bytes()), UsageNumbers::default(), "{none}");
        }
    }

    #[test]
    fn numbers_of_several_objects_are_put_together_as_one() {
        let mut all = UsageNumbers::default();
        all.merge(
            read_usage(br#"{"usage":{"input_tokens":5,"cache_read_input_tokens":160,"output_tokens":0}}"#).unwrap(),
        );
        all.merge(read_usage(br#"{"usage":{"input_tokens":5,"output_tokens":7}}"#).unwrap());
        assert_eq!(all.usage(), Usage { prompt: Some(165), cached: Some(160), output: Some(7) });
    }

    #[test]
    fn of_many_objects_none_is_believed() {
        let object = r#"{"usage":{"prompt_tokens":5}},"#;
        let told = |text: &str, cut: usize| {
            let mut scan = Scan::default();
            text.as_bytes().chunks(cut).for_each(|piece| scan.pass(piece));
            scan.told.usage().prompt
        };
        for cut in [1, 7, 64, 1 << 20] {
            assert_eq!(told(&object.repeat(16), cut), Some(5), "{cut}");
            assert_eq!(told(&object.repeat(17), cut), None, "{cut}");
            let tokens = r#"{"token":"usage","usage":null},"#.repeat(1000);
            assert_eq!(told(&format!("[{tokens}{object}"), cut), Some(5), "{cut}");
            assert_eq!(told(&r#""usage":{"#.repeat(10_000), cut), None, "{cut}");
        }
    }

    #[test]
    fn it_is_found_however_the_text_is_cut_and_whatever_stands_behind_it() {
        let text = format!(
            r#"{{"id":"x","usage": {{"prompt_tokens":5,"completion_tokens":7}},"output":"{}","error":null}}"#,
            "\\\"usage\\\": {}".repeat(9)
        );
        for cut in 1..text.len() {
            let mut scan = Scan::default();
            text.as_bytes().chunks(cut).for_each(|piece| scan.pass(piece));
            assert_eq!(scan.told.usage(), Usage { prompt: Some(5), cached: None, output: Some(7) }, "{cut}");
        }
    }
}
