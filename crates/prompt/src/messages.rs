//! Chat messages in the form in which engines pass them to a chat template.
//!
//! A request's content is a string or a list of parts. Each template is written for one of the two, so engines convert
//! one into the other before rendering. Arguments of tool calls, which are JSON strings in requests, become objects.
//!
//! Images and other content that is not text have no tokens known to the router. A mark, [`CUT`], replaces the first of
//! these parts: the text before the mark is exact, and the tokens end there.

use std::borrow::Cow;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::allowance::{CountedList, CountedValue, MESSAGE, PART, take};
use crate::dialect::Dialect;
use crate::prompt_tokens::PromptFailure;
use crate::request::{is_there, string};
use crate::request_fields::{RequestContent, RequestMessage};

/// Mark in a rendered text at the place of the first part that is not text, where the known tokens end: private-use
/// characters around words.
pub(crate) const CUT: &str = "\u{f8ff}\u{e000}the text ends here\u{e001}\u{f8ff}";

/// Messages of a chat, converted to values for a chat template.
#[derive(Debug)]
pub(crate) struct TemplateMessages {
    pub(crate) messages: Vec<Value>,
    /// Reason why the rendered text ends early, at the mark [`CUT`]; `None` if the text is complete.
    pub(crate) cut: Option<PromptFailure>,
}

/// A chat message from a request of any API, with the kind of each part of its content.
#[derive(Debug, Default)]
pub(crate) struct Message<'a> {
    pub(crate) role: Cow<'a, str>,
    pub(crate) content: Vec<Part<'a>>,
    /// True if the request has the message's content as a list of parts, not as a string.
    pub(crate) is_list: bool,
    pub(crate) tool_calls: Vec<Value>,
    pub(crate) reasoning: Option<Value>,
    pub(crate) tool_call_id: Option<Value>,
    pub(crate) tools: Option<Value>,
    pub(crate) name: Option<Cow<'a, str>>,
}

impl Message<'_> {
    /// Reason why a part of the message has no text; `None` if all parts have a text.
    pub(crate) fn why_not(&self) -> Option<PromptFailure> {
        self.content.iter().find_map(|part| match part {
            Part::Other(_, why_not) => Some(*why_not),
            Part::Text(_) | Part::Tool(_) => None,
        })
    }

    /// Number of bytes of the texts in the message's content.
    pub(crate) fn text_length(&self) -> usize {
        self.content.iter().filter_map(Part::text).map(str::len).sum()
    }

    /// Number of images in the message's content.
    pub(crate) fn images(&self) -> usize {
        self.content.iter().filter(|part| matches!(part, Part::Other(_, PromptFailure::Image))).count()
    }

    /// True if the message is rendered equally for all supported engines and versions.
    pub(crate) fn is_plain(&self) -> bool {
        let is_known = matches!(self.role.as_ref(), "user" | "assistant" | "system");
        is_known && !self.is_list && self.tool_calls.is_empty() && self.reasoning.is_none()
    }

    /// JSON of the message for a chat request, with only its texts and the tools that it references.
    ///
    /// JSON objects take more than twice the memory of template values, and are counted accordingly.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let more = PART * 2 * (self.content.len() + self.tool_calls.len());
        if take(MESSAGE + more + self.text_length()).is_err() {
            return serde_json::Value::Null;
        }
        let parts = self.content.iter().filter_map(|part| match part {
            Part::Text(text) => Some(serde_json::json!({ "type": "text", "text": text })),
            Part::Tool(name) => Some(serde_json::json!({ "type": "tool_reference", "name": name })),
            Part::Other(..) => None,
        });
        let content = match self.content.as_slice() {
            [] => serde_json::Value::Null,
            [Part::Text(text)] => text.as_ref().into(),
            _ => parts.collect(),
        };
        let mut made = serde_json::json!({ "role": self.role, "content": content });
        if !self.tool_calls.is_empty() {
            made["tool_calls"] = self.tool_calls.iter().map(call_to_json).collect();
        }
        let others = [("reasoning", &self.reasoning), ("tool_call_id", &self.tool_call_id), ("tools", &self.tools)];
        for (name, value) in others {
            if let Some(value) = value.as_ref().and_then(|value| serde_json::to_value(value).ok()) {
                made[name] = value;
            }
        }
        if let Some(name) = &self.name {
            made["name"] = name.as_ref().into();
        }
        made
    }
}

/// JSON of a tool call for a chat request, in which the arguments are a JSON string.
fn call_to_json(call: &Value) -> serde_json::Value {
    let mut made = serde_json::to_value(call).unwrap_or_default();
    if let Some(arguments) = made.pointer_mut("/function/arguments").filter(|arguments| !arguments.is_string()) {
        *arguments = arguments.to_string().into();
    }
    made
}

/// A part of a message's content.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    Text(Cow<'a, str>),
    /// A reference to a tool, by the tool's name.
    Tool(Cow<'a, str>),
    /// A part that is not text, such as an image: its type for templates, and the reason why the prompt's tokens end at
    /// the part.
    Other(&'static str, PromptFailure),
}

impl Part<'_> {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Tool(_) | Self::Other(..) => None,
        }
    }
}

/// Parses a JSON list whose syntax was checked before. Returns the items and, for each item, the offset of its end
/// after the opening bracket, in bytes. `None` if an item is not a `T`.
pub(crate) fn listed<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<(Vec<T>, Vec<usize>)> {
    listed_by(raw, |rest| {
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<T>();
        Some((stream.next()?.ok()?, stream.byte_offset()))
    })
}

/// Parses a JSON list like [`listed`], with a function for the items. `read`: returns the item at the beginning of the
/// given JSON and the length of the item, in bytes.
fn listed_by<'a, T>(
    raw: &'a RawValue,
    mut read: impl FnMut(&'a str) -> Option<(T, usize)>,
) -> Option<(Vec<T>, Vec<usize>)> {
    let list = raw.get().strip_prefix('[')?;
    let (mut items, mut ends) = (Vec::new(), Vec::new());
    let mut at = 0;
    // Items are separated by commas, and the list ends with a bracket.
    while let rest = list[at..].trim_start_matches([' ', '\n', '\r', '\t', ','])
        && rest != "]"
    {
        let (item, length) = read(rest)?;
        take(size_of::<T>() + MESSAGE).ok()?;
        items.push(item);
        at = list.len() - rest.len() + length;
        ends.push(at);
    }
    Some((items, ends))
}

/// Parses the list of messages of a chat request. Returns the messages and, for each message, the offset of its end in
/// the list, in bytes.
pub(crate) fn of_chat(raw: &RawValue, dialect: Dialect) -> Result<(Vec<Message<'_>>, Vec<usize>), PromptFailure> {
    let (given, ends) = listed_by(raw, RequestMessage::leading).ok_or(PromptFailure::BadMessages)?;
    let mut messages = Vec::with_capacity(given.len());
    for given in given {
        let mut message = message(given, dialect)?;
        dialect.leave_out_billing(&message.role, &mut message.content);
        messages.push(message);
    }
    Ok((messages, ends))
}

fn message(given: RequestMessage<'_>, dialect: Dialect) -> Result<Message<'_>, PromptFailure> {
    let role = given.role.ok_or(PromptFailure::BadMessages)?;
    let reasoning = [given.reasoning, given.reasoning_content].into_iter().flatten().next();
    let is_list = matches!(given.content, Some(RequestContent::Other(raw)) if raw.get().starts_with('['));
    Ok(Message {
        role,
        content: match given.content {
            None => Vec::new(),
            Some(RequestContent::Text(text)) => vec![Part::Text(text)],
            Some(RequestContent::Other(raw)) => content(raw)?,
        },
        is_list,
        tool_calls: given.tool_calls.map(|calls| tool_calls(calls, dialect)).transpose()?.unwrap_or_default(),
        reasoning: reasoning.map(value).transpose()?.filter(|value| !value.is_none()),
        tool_call_id: given.tool_call_id.map(value).transpose()?,
        tools: given.tools.map(value).transpose()?,
        name: given.name.and_then(|name| string(name.get())),
    })
}

/// Parses the content of a chat message, which is null, a string, or a list of parts.
pub(crate) fn content(raw: &RawValue) -> Result<Vec<Part<'_>>, PromptFailure> {
    let json = raw.get();
    match json.as_bytes().first() {
        Some(b'"') => Ok(vec![Part::Text(string(json).ok_or(PromptFailure::BadMessages)?)]),
        Some(b'[') => {
            let list: CountedList<&RawValue, PART> =
                serde_json::from_str(json).map_err(|_| PromptFailure::BadMessages)?;
            list.0.into_iter().map(part).collect()
        }
        _ if json == "null" => Ok(Vec::new()),
        _ => Err(PromptFailure::BadMessages),
    }
}

/// Part of a message's content, as the JSON of a request gives it.
#[derive(Deserialize)]
struct GivenPart<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    image_url: Option<&'a RawValue>,
    #[serde(borrow)]
    audio_url: Option<&'a RawValue>,
    #[serde(borrow)]
    input_audio: Option<&'a RawValue>,
    #[serde(borrow)]
    video_url: Option<&'a RawValue>,
}

fn part(raw: &RawValue) -> Result<Part<'_>, PromptFailure> {
    let json = raw.get();
    if json.starts_with('"') {
        return string(json).map(Part::Text).ok_or(PromptFailure::BadMessages);
    }
    let given: GivenPart<'_> = serde_json::from_str(json).map_err(|_| PromptFailure::BadMessages)?;
    let text = match given.kind.as_deref() {
        Some("text" | "input_text" | "output_text") => given.text,
        Some("refusal") => given.refusal,
        Some("thinking") => given.thinking,
        Some("tool_reference") => {
            let name = given.name.and_then(|name| string(name.get()));
            return name.map(Part::Tool).ok_or(PromptFailure::BadMessages);
        }
        Some("image_url" | "input_image" | "image" | "image_pil" | "image_embeds") => {
            return Ok(Part::Other("image", PromptFailure::Image));
        }
        Some("audio_url" | "input_audio" | "audio" | "audio_embeds") => {
            return Ok(Part::Other("audio", PromptFailure::Audio));
        }
        Some("video_url" | "video" | "input_video") => return Ok(Part::Other("video", PromptFailure::Video)),
        Some(_) => return Ok(Part::Other("file", PromptFailure::OtherPart)),
        // Engines infer the type of a part without one from its fields.
        None if is_there(given.image_url) => return Ok(Part::Other("image", PromptFailure::Image)),
        None if is_there(given.audio_url) || is_there(given.input_audio) => {
            return Ok(Part::Other("audio", PromptFailure::Audio));
        }
        None if is_there(given.video_url) => return Ok(Part::Other("video", PromptFailure::Video)),
        None => None,
    };
    text.and_then(|text| string(text.get())).map(Part::Text).ok_or(PromptFailure::BadMessages)
}

/// Tool calls of a message, with their arguments parsed to objects.
fn tool_calls(raw: &RawValue, dialect: Dialect) -> Result<Vec<Value>, PromptFailure> {
    let calls: Option<CountedList<CountedValue, PART>> =
        serde_json::from_str(raw.get()).map_err(|_| PromptFailure::BadMessages)?;
    let calls = calls.map(|calls| calls.0).unwrap_or_default();
    Ok(calls.into_iter().map(|CountedValue(call)| tool_call(&call, dialect)).collect())
}

fn tool_call(call: &Value, dialect: Dialect) -> Value {
    let Some(function) = field(call, "function").filter(|function| field(function, "name").is_some()) else {
        return call.clone();
    };
    let arguments = match field(&function, "arguments") {
        Some(given) => match given.as_str() {
            Some("") => object([]),
            // Engines replace anything but an object by an empty object, so that the chat can continue.
            Some(json) => parsed(json).filter(is_object).unwrap_or_else(|| object([])),
            None if is_object(&given) => given,
            None => object([]),
        },
        None => object([]),
    };
    let function = with(&function, "arguments", arguments);
    dialect.call(call, &function)
}

pub(crate) fn is_object(value: &Value) -> bool {
    value.kind() == ValueKind::Map
}

/// Returns the value of a field of a map; `None` if the map does not have the field.
pub(crate) fn field(map: &Value, name: &str) -> Option<Value> {
    map.get_attr(name).ok().filter(|value| !value.is_undefined())
}

/// Copies a map with one field set to `value`. An existing field keeps its position in the map.
pub(crate) fn with(map: &Value, name: &str, value: Value) -> Value {
    let mut fields: Vec<(Value, Value)> = Vec::new();
    let mut new = Some(value);
    for key in map.try_iter().into_iter().flatten() {
        let old = map.get_item(&key).unwrap_or_default();
        let value = if key.as_str() == Some(name) { new.take().unwrap_or(old) } else { old };
        fields.push((key, value));
    }
    fields.extend(new.map(|new| (Value::from(name), new)));
    Value::from_pairs(fields)
}

/// Creates a map with the given fields, as a value for chat templates.
pub(crate) fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::from_pairs(fields)
}

/// Parses any JSON to a value for chat templates.
pub(crate) fn value(raw: &RawValue) -> Result<Value, PromptFailure> {
    parsed(raw.get()).ok_or(PromptFailure::BadMessages)
}

/// Parses a text as JSON; `None` if it is not JSON.
pub(crate) fn parsed(json: &str) -> Option<Value> {
    serde_json::from_str(json).ok().map(|CountedValue(value)| value)
}

/// Parses an optional field's JSON to a value for chat templates; `None` if the field is missing or invalid.
pub(crate) fn given(raw: Option<&RawValue>) -> Option<Value> {
    parsed(raw?.get())
}

/// Converts messages to values for a chat template.
///
/// `as_parts`: true if the template accepts contents as lists of parts instead of strings. `keeps_images`: true if the
/// text continues after images, in whose place a template that accepts parts writes a token.
pub(crate) fn prepare(
    messages: Vec<Message<'_>>,
    as_parts: bool,
    keeps_images: bool,
    dialect: Dialect,
) -> TemplateMessages {
    let mut cut = Cut { keeps_images, why_not: None };
    // The texts are copied; without room for that, the failure is stored and the result is not used.
    let messages = messages.into_iter().take_while(|message| take(message.text_length()).is_ok());
    let messages = messages.map(|message| prepared(message, as_parts, dialect, &mut cut)).collect();
    TemplateMessages { messages, cut: cut.why_not }
}

/// State of converting messages to text: the reason why the text ends at a part that is not text, if it does.
struct Cut {
    keeps_images: bool,
    why_not: Option<PromptFailure>,
}

impl Cut {
    /// Ends the text at the current part of a message, unless the text has ended before. Returns true if the current
    /// part is the first that ends the text.
    fn at(&mut self, why_not: PromptFailure) -> bool {
        self.why_not.replace(self.why_not.unwrap_or(why_not)).is_none()
    }
}

fn prepared(message: Message<'_>, as_parts: bool, dialect: Dialect, cut: &mut Cut) -> Value {
    // Templates take a tool result as a string even where they take parts otherwise.
    let is_string = message.role == "tool" && !message.content.iter().any(|part| matches!(part, Part::Tool(_)));
    // SGLang keeps a content that is one string as a string.
    let content = if as_parts && !is_string && (dialect.is_vllm() || message.is_list) {
        parts(message.content, cut)
    } else {
        join(message.content, dialect, cut)
    };
    let mut made: Vec<(Value, Value)> =
        vec![("role".into(), Value::from(message.role.as_ref())), ("content".into(), content)];
    match message.role.as_ref() {
        "assistant" => {
            if !message.tool_calls.is_empty() {
                made.push(("tool_calls".into(), message.tool_calls.into()));
            }
            if let Some(reasoning) = message.reasoning {
                if dialect.is_vllm() {
                    made.push(("reasoning".into(), reasoning.clone()));
                }
                made.push(("reasoning_content".into(), reasoning));
            }
        }
        "tool" => made.extend(message.tool_call_id.map(|id| ("tool_call_id".into(), id))),
        "developer" => made.push(("tools".into(), message.tools.unwrap_or(Value::from(())))),
        _ => {}
    }
    made.extend(message.name.map(|name| ("name".into(), Value::from(name.as_ref()))));
    Value::from_pairs(made)
}

fn parts(content: Vec<Part<'_>>, cut: &mut Cut) -> Value {
    let text = |text: &str| object([("type", "text".into()), ("text", text.into())]);
    let mut made = Vec::with_capacity(content.len());
    for part in content {
        match part {
            Part::Text(words) => made.push(text(&words)),
            Part::Tool(name) => made.push(object([("type", "tool_reference".into()), ("name", name.as_ref().into())])),
            Part::Other(kind, why_not) => {
                if !(cut.keeps_images && why_not == PromptFailure::Image) && cut.at(why_not) {
                    made.push(text(CUT));
                }
                made.push(object([("type", kind.into())]));
            }
        }
    }
    made.into()
}

/// Joins the texts of a message's content to one. Engines put images and other parts that are not text first, so with
/// any of them the text ends before the message's own text.
fn join(content: Vec<Part<'_>>, dialect: Dialect, cut: &mut Cut) -> Value {
    if let [Part::Text(text)] = content.as_slice() {
        return text.as_ref().into();
    }
    let other = content.iter().find_map(|part| match part {
        Part::Other(_, why_not) => Some(*why_not),
        Part::Text(_) | Part::Tool(_) => None,
    });
    let mut lines: Vec<&str> = Vec::with_capacity(content.len() + 1);
    if let Some(why_not) = other
        && cut.at(why_not)
    {
        lines.push(CUT);
    }
    lines.extend(content.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_ref()),
        Part::Tool(name) => dialect.is_vllm().then_some(name.as_ref()),
        Part::Other(..) => None,
    }));
    lines.join(dialect.between_texts()).into()
}
