//! Media: parts of a request's body that are not text, such as images and sounds, given as base64 or as URLs.
//!
//! The bytes of an image do not predict its tokens: 400 kB of a photo are about a thousand tokens, and as text they
//! would be a hundred thousand. Values that are not text are therefore recognised by the keys and types of the APIs,
//! and counted by kind.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, packed};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::json_string::{Key, string};

/// Kind of content that is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// Images and screenshots.
    Image,
    /// Sounds, such as recorded speech.
    Audio,
    /// Videos.
    Video,
    /// Files of any type.
    File,
    /// Prompts given as embeddings.
    Embeds,
}

impl MediaKind {
    /// All kinds of media, in a fixed order.
    pub const ALL: [Self; 5] = [Self::Image, Self::Audio, Self::Video, Self::File, Self::Embeds];
}

/// Number of tokens assumed for a value of each kind of media, until an engine has reported a count.
pub const MEDIA_TOKENS: [f64; MediaKind::ALL.len()] = [1024.0, 512.0, 4096.0, 2048.0, 512.0];

/// Content of a request's body: number of bytes of text, and number of other values by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Media {
    /// Size of the body without the values that are not text, in bytes.
    pub text: usize,
    /// Number of values of each kind of media.
    pub items: [u32; MediaKind::ALL.len()],
}

/// Words by which media are found: at least one of them occurs in every body that has content other than text; a body
/// without them needs no closer search.
const WORDS: [&str; 10] = [
    ";base64,",
    "\"base64\"",
    "\"result\"",
    "_url\"",
    "\"url\"",
    "_audio\"",
    "_image\"",
    "_data\"",
    "embeds\"",
    "\"image\"",
];

/// Number of leading characters by which a value is recognised as base64; shorter values do not count as media.
const KNOWN_BY: usize = 64;

/// True if a body contains one of [`WORDS`]. A vectorized search, if the processor has it, takes a third of the time of
/// a search by automaton, which stops at every quotation mark.
fn has_word(body: &[u8]) -> bool {
    static VECTORIZED: LazyLock<Option<packed::Searcher>> = LazyLock::new(|| packed::Searcher::new(WORDS));
    static AUTOMATON: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| AhoCorasick::new(WORDS).ok());
    match &*VECTORIZED {
        Some(searcher) => searcher.find(body).is_some(),
        // Constant words always compile; if they did not, the body would be examined.
        None => AUTOMATON.as_ref().is_none_or(|automaton| automaton.is_match(body)),
    }
}

impl Media {
    /// Counts the images, sounds and other values of a body that are not text; `None` if there are none.
    #[must_use]
    pub fn of(body: &[u8]) -> Option<Self> {
        if !has_word(body) {
            return None;
        }
        let mut walk = Walk::default();
        let mut reader = serde_json::Deserializer::from_slice(body);
        let open = PlacedValue { walk: &mut walk, place: Place::Plain }.deserialize(&mut reader).ok()?;
        walk.items[MediaKind::File as usize] += open.inline;
        let items = walk.items;
        items.iter().any(|count| *count > 0).then(|| Self { text: body.len().saturating_sub(walk.bytes), items })
    }

    /// Estimated number of tokens of the text and of all other values. `each`: number of tokens of a value of each
    /// kind.
    #[must_use]
    pub fn tokens(&self, each: &[f64; MediaKind::ALL.len()]) -> f64 {
        self.text.div_ceil(4) as f64 + self.items_tokens(each)
    }

    /// Estimated number of tokens of all values that are not text. `each`: number of tokens of a value of each kind.
    #[must_use]
    pub fn items_tokens(&self, each: &[f64; MediaKind::ALL.len()]) -> f64 {
        self.items.iter().zip(each).map(|(count, tokens)| f64::from(*count) * tokens).sum()
    }
}

/// Media found so far while a body is searched.
#[derive(Default)]
struct Walk {
    /// Number of bytes of the body that belong to values that are not text.
    bytes: usize,
    items: [u32; MediaKind::ALL.len()],
}

/// Values whose kind of media is given only by a neighbouring or an enclosing field.
#[derive(Default, Clone, Copy)]
struct UntypedValues {
    /// Number of values of unknown kind whose data are in the body itself.
    inline: u32,
    /// Number of values of unknown kind that are URLs, which count as media only if a field gives a kind.
    addresses: u32,
}

/// Meaning of a JSON key for the value under it: text, media or other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The key `text`, for a content part that is text.
    Text,
    /// A key that says neither that the value is text nor that it is media.
    Plain,
    /// The key of a value that is media, with the kind if the key implies one.
    Media(Option<MediaKind>),
}

/// A JSON value to search for media, with the meaning of its key.
struct PlacedValue<'w> {
    walk: &'w mut Walk,
    place: Place,
}

impl Place {
    fn of(key: &str, around: Self) -> Self {
        let kind = match key {
            "image_url" | "image" | "images" | "image_data" | "input_image" | "image_pil" | "image_embeds" => {
                MediaKind::Image
            }
            "audio_url" | "audio" | "audios" | "audio_data" | "input_audio" | "audio_embeds" => MediaKind::Audio,
            "video_url" | "video" | "videos" | "video_data" | "input_video" => MediaKind::Video,
            "file" | "file_data" | "file_url" | "input_file" | "document" | "pdf" => MediaKind::File,
            "prompt_embeds" | "input_embeds" => MediaKind::Embeds,
            "url" | "data" | "source" | "result" | "b64_json" | "base64" | "bytes" | "blob" => {
                return if let Self::Media(Some(_)) = around { around } else { Self::Media(None) };
            }
            "text" | "content" | "prompt" | "input" | "instructions" | "system" | "arguments" | "description"
            | "thinking" | "reasoning" | "reasoning_content" | "signature" | "encrypted_content" => return Self::Text,
            _ => return Self::Plain,
        };
        Self::Media(Some(kind))
    }
}

/// Returns the kind of media that the type of a content part, or a media type, names; `None` for text and unknown
/// types.
fn kind_of(word: &str) -> Option<MediaKind> {
    const NAMES: [(&str, MediaKind); 7] = [
        ("image", MediaKind::Image),
        ("screenshot", MediaKind::Image),
        ("audio", MediaKind::Audio),
        ("video", MediaKind::Video),
        ("file", MediaKind::File),
        ("document", MediaKind::File),
        ("application/", MediaKind::File),
    ];
    NAMES.iter().find(|(name, _)| word.contains(name)).map(|(_, kind)| *kind)
}

impl PlacedValue<'_> {
    fn string(self, text: &str) -> UntypedValues {
        let (kind, is_media_key) = match self.place {
            Place::Text => return UntypedValues::default(),
            Place::Plain => (None, false),
            Place::Media(kind) => (kind, true),
        };
        let is_data = is_data_url(text);
        let is_inline = if is_media_key { is_data || is_base64(text) } else { is_data && is_base64_url(text) };
        if is_inline {
            self.walk.bytes += text.len();
            let named = if is_data { text.split([';', ',']).next().and_then(kind_of) } else { None };
            return self.found(kind.or(named), UntypedValues { inline: 1, addresses: 0 });
        }
        let is_address = is_media_key && text.contains("://") && text.len() < 16 << 10;
        if is_address { self.found(kind, UntypedValues { inline: 0, addresses: 1 }) } else { UntypedValues::default() }
    }

    fn found(self, kind: Option<MediaKind>, open: UntypedValues) -> UntypedValues {
        let Some(kind) = kind else { return open };
        self.walk.items[kind as usize] += open.inline + open.addresses;
        UntypedValues::default()
    }
}

fn is_base64_url(text: &str) -> bool {
    text.split_once(',').is_some_and(|(head, _)| head.len() < 256 && head.ends_with(";base64"))
}

/// True if a text is a URL with inline data (`data:`).
pub(crate) fn is_data_url(text: &str) -> bool {
    text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"))
}

fn is_base64(text: &str) -> bool {
    let is_of_it = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_\r\n".contains(byte);
    text.len() >= 4 * KNOWN_BY && text.as_bytes()[..KNOWN_BY].iter().all(is_of_it)
}

impl<'de> DeserializeSeed<'de> for PlacedValue<'_> {
    type Value = UntypedValues;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<UntypedValues, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PlacedValue<'_> {
    type Value = UntypedValues;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<UntypedValues, E> {
        Ok(UntypedValues::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<UntypedValues, E> {
        Ok(UntypedValues::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<UntypedValues, E> {
        Ok(UntypedValues::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<UntypedValues, E> {
        Ok(UntypedValues::default())
    }

    fn visit_unit<E>(self) -> Result<UntypedValues, E> {
        Ok(UntypedValues::default())
    }

    fn visit_str<E>(self, text: &str) -> Result<UntypedValues, E> {
        Ok(self.string(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<UntypedValues, A::Error> {
        let mut open = UntypedValues::default();
        if self.place == Place::Media(Some(MediaKind::Embeds)) {
            // Tensors given as strings, or one as nested lists of numbers.
            let (mut count, mut bytes) = (0, 0);
            while let Some(raw) = list.next_element::<&RawValue>()? {
                count += u32::from(raw.get().starts_with('"'));
                bytes += raw.get().len();
            }
            self.walk.items[MediaKind::Embeds as usize] += count.max(1);
            self.walk.bytes += bytes;
            return Ok(open);
        }
        while let Some(more) = list.next_element_seed(PlacedValue { walk: self.walk, place: self.place })? {
            open.inline += more.inline;
            open.addresses += more.addresses;
        }
        Ok(open)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UntypedValues, A::Error> {
        let mut open = UntypedValues::default();
        let mut kind = None;
        while let Some(Key(key)) = map.next_key::<Key<'_>>()? {
            if matches!(&*key, "type" | "media_type" | "mime_type") {
                let word = string(map.next_value::<&RawValue>()?.get());
                kind = kind.or_else(|| word.as_deref().and_then(kind_of));
                continue;
            }
            let place = Place::of(&key, self.place);
            let more = map.next_value_seed(PlacedValue { walk: self.walk, place })?;
            open.inline += more.inline;
            open.addresses += more.addresses;
        }
        Ok(self.found(kind, open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(body: &str) -> Option<[u32; 5]> {
        Media::of(body.as_bytes()).map(|media| {
            assert!(media.text < 500, "{media:?}");
            media.items
        })
    }

    #[test]
    fn each_api_has_its_ways_to_carry_what_is_not_text() {
        let b64 = "iVBORw0KGgo/+A".repeat(30_000);
        let image = Some([1, 0, 0, 0, 0]);
        for (body, expected) in [
            (
                r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,B64"}}]}]}"#,
                image,
            ),
            (r#"{"messages":[{"content":[{"image_url":"data:image/png;base64,B64","type":"input_image"}]}]}"#, image),
            (r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://a.b/c.png"}}]}]}"#, image),
            (
                r#"{"messages":[{"content":[{"source":{"data":"B64","type":"base64","media_type":"image/png"},"type":"image"}]}]}"#,
                image,
            ),
            (
                r#"{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"base64","data":"B64"}}]}]}]}"#,
                image,
            ),
            (
                r#"{"input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"data:image/png;base64,B64"}]}]}"#,
                image,
            ),
            (r#"{"input":[{"type":"image_generation_call","result":"B64"}]}"#, image),
            (
                r#"{"input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:image/png;base64,B64"}}]}"#,
                image,
            ),
            (
                r#"{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"B64","format":"wav"}}]}]}"#,
                Some([0, 1, 0, 0, 0]),
            ),
            (
                r#"{"messages":[{"content":[{"type":"video_url","video_url":{"url":"data:video/mp4;base64,B64"}}]}]}"#,
                Some([0, 0, 1, 0, 0]),
            ),
            (
                r#"{"messages":[{"content":[{"type":"file","file":{"file_data":"data:application/pdf;base64,B64","filename":"a"}}]}]}"#,
                Some([0, 0, 0, 1, 0]),
            ),
            (
                r#"{"messages":[{"content":[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"B64"}}]}]}"#,
                Some([0, 0, 0, 1, 0]),
            ),
            (r#"{"prompt_embeds":"B64"}"#, Some([0, 0, 0, 0, 1])),
            (r#"{"prompt_embeds":["B64","B64"]}"#, Some([0, 0, 0, 0, 2])),
            (r#"{"messages":[{"content":[{"type":"new_thing","thing":"data:image/webp;base64,B64"}]}]}"#, image),
            (r#"{"text":"what is this?","image_data":["B64","data:image/png;base64,B64"]}"#, Some([2, 0, 0, 0, 0])),
        ] {
            assert_eq!(items(&body.replace("B64", &b64)), expected, "{body}");
        }
    }

    #[test]
    fn text_is_text_whatever_it_is_about() {
        let long = "x".repeat(40_000);
        for body in [
            r#"{"messages":[{"role":"user","content":"data:image/png;base64,LONG"}]}"#,
            r#"{"messages":[{"content":[{"type":"text","text":"see image_url: LONG"}]}]}"#,
            r#"{"prompt":"LONG base64"}"#,
            r#"{"tools":[{"function":{"parameters":{"properties":{"image":{"type":"string","description":"an image_url\""}}}}}]}"#,
            r#"{"messages":[{"content":[{"type":"tool_use","input":{"url":"https://a.b/c","base64":false}}]}]}"#,
            r#"{"messages":[{"content":[{"type":"text","text":"a","annotations":[{"type":"url_citation","url":"https://a.b"}]}]}]}"#,
        ] {
            assert_eq!(Media::of(body.replace("LONG", &long).as_bytes()), None, "{body}");
        }
    }
}
