//! Requests of other kinds as chats: what engines make of `POST /v1/responses` and `POST /v1/messages`.

use std::borrow::Cow;

use minijinja::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::endpoint::Endpoint;
use crate::messages::{self, Message, Part, field, object, value};
use crate::request::{Parts, is_there, read, string};
use crate::why_not::WhyNot;

/// The tools of a request as a chat request has them: objects with `type` and `function`, whose fields engines put in
/// order, with null for a description or parameters that are not given.
pub(crate) fn tools(endpoint: Endpoint, raw: Option<&RawValue>) -> Result<Option<Value>, WhyNot> {
    let Some(raw) = raw.filter(|raw| is_there(Some(raw))) else { return Ok(None) };
    let given: Vec<Value> = read(Some(raw)).ok_or(WhyNot::BadMessages)?;
    if given.is_empty() {
        return Ok(None);
    }
    let tools: Result<Vec<Value>, WhyNot> = given
        .iter()
        .map(|tool| match endpoint {
            Endpoint::Messages => function(tool, "input_schema").map(|function| tool_of(function, None)),
            Endpoint::Responses => match field(tool, "type").as_ref().and_then(Value::as_str) {
                Some("function") => function(tool, "parameters").map(|function| tool_of(function, None)),
                _ => Err(WhyNot::OtherItem),
            },
            _ => {
                let inner = field(tool, "function").ok_or(WhyNot::BadMessages)?;
                let known = ordered(&inner, &["name", "description", "parameters"]);
                Ok(tool_of(known, Some(tool)))
            }
        })
        .collect();
    Ok(Some(tools?.into()))
}

fn function(tool: &Value, parameters: &str) -> Result<Value, WhyNot> {
    Ok(object([
        ("name", field(tool, "name").ok_or(WhyNot::BadMessages)?),
        ("description", field(tool, "description").unwrap_or(Value::from(()))),
        ("parameters", field(tool, parameters).unwrap_or(Value::from(()))),
    ]))
}

fn tool_of(function: Value, from: Option<&Value>) -> Value {
    let mut made: Vec<(Value, Value)> = vec![("type".into(), "function".into()), ("function".into(), function)];
    made.extend(from.into_iter().flat_map(|from| others(from, &["type", "function"])));
    Value::from_pairs(made)
}

/// A map with these fields first, null where it has none.
fn ordered(map: &Value, names: &[&str]) -> Value {
    let first = names.iter().map(|name| (Value::from(*name), field(map, name).unwrap_or(Value::from(()))));
    Value::from_pairs(first.chain(others(map, names)))
}

fn others(map: &Value, names: &[&str]) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.filter(|key| key.as_str().is_none_or(|key| !names.contains(&key)))
        .map(|key| {
            let value = map.get_item(&key).unwrap_or_default();
            (key, value)
        })
        .collect()
}

fn system(text: Cow<'_, str>) -> Message<'_> {
    Message { role: "system".into(), content: vec![Part::Text(text)], ..Message::default() }
}

/// A function call as a chat has it.
fn call(id: Option<Value>, name: Value, arguments: Value) -> Value {
    let function = object([("name", name), ("arguments", arguments)]);
    object([("id", id.unwrap_or(Value::from(()))), ("type", "function".into()), ("function", function)])
}

/// An item of the input of `POST /v1/responses`.
#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Cow<'a, str>>,
    #[serde(borrow)]
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
}

/// The messages of `POST /v1/responses`.
pub(crate) fn of_responses<'a>(parts: &Parts<'a>) -> Result<Vec<Message<'a>>, WhyNot> {
    let mut messages = Vec::new();
    if let Some(text) = parts.instructions.and_then(|raw| string(raw.get())).filter(|text| !text.is_empty()) {
        messages.push(system(text));
    }
    let input = parts.input.ok_or(WhyNot::NoPrompt)?;
    if let Some(text) = string(input.get()) {
        messages.push(Message { role: "user".into(), content: vec![Part::Text(text)], ..Message::default() });
        return Ok(messages);
    }
    let items: Vec<Item<'a>> = serde_json::from_str(input.get()).map_err(|_| WhyNot::NoPrompt)?;
    for item in items {
        match item.kind.as_deref() {
            None | Some("message") => messages.push(Message {
                role: item.role.ok_or(WhyNot::BadMessages)?,
                content: item.content.map(messages::content).transpose()?.unwrap_or_default(),
                ..Message::default()
            }),
            Some("function_call") => {
                let arguments = item.arguments.as_deref().filter(|json| !json.is_empty()).unwrap_or("{}");
                let arguments: Value = serde_json::from_str(arguments).map_err(|_| WhyNot::BadMessages)?;
                let name = Value::from(item.name.as_deref().ok_or(WhyNot::BadMessages)?);
                let made = call(item.call_id.as_deref().map(Value::from), name, arguments);
                match messages.last_mut() {
                    // Calls made in one turn are of one message.
                    Some(last) if last.role == "assistant" && !last.tool_calls.is_empty() => last.tool_calls.push(made),
                    _ => messages.push(Message {
                        role: "assistant".into(),
                        tool_calls: vec![made],
                        ..Message::default()
                    }),
                }
            }
            Some("function_call_output") => messages.push(Message {
                role: "tool".into(),
                content: item.output.map(messages::content).transpose()?.unwrap_or_default(),
                tool_call_id: item.call_id.as_deref().map(Value::from),
                ..Message::default()
            }),
            Some(_) => return Err(WhyNot::OtherItem),
        }
    }
    if messages.is_empty() { Err(WhyNot::NoPrompt) } else { Ok(messages) }
}

/// A message of `POST /v1/messages`.
#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

/// A block of such a message.
#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// The messages of `POST /v1/messages`.
pub(crate) fn of_messages<'a>(parts: &Parts<'a>) -> Result<Vec<Message<'a>>, WhyNot> {
    let mut messages = Vec::new();
    if let Some(raw) = parts.system.filter(|raw| is_there(Some(raw))) {
        let text = match string(raw.get()) {
            Some(text) => text,
            None => {
                let blocks: Vec<Block<'a>> = serde_json::from_str(raw.get()).map_err(|_| WhyNot::BadMessages)?;
                blocks.into_iter().filter_map(|block| block.text).collect::<String>().into()
            }
        };
        if !text.is_empty() {
            messages.push(system(text));
        }
    }
    let turns: Vec<Turn<'a>> = read(parts.messages).ok_or(WhyNot::BadMessages)?;
    if turns.is_empty() {
        return Err(WhyNot::BadMessages);
    }
    for turn in turns {
        let mut message = Message { role: turn.role, ..Message::default() };
        if let Some(text) = string(turn.content.get()) {
            message.content.push(Part::Text(text));
            messages.push(message);
            continue;
        }
        let blocks: Vec<Block<'a>> = serde_json::from_str(turn.content.get()).map_err(|_| WhyNot::BadMessages)?;
        let mut thoughts = String::new();
        for block in blocks {
            match block.kind.as_ref() {
                "text" => message.content.push(Part::Text(block.text.ok_or(WhyNot::BadMessages)?)),
                "image" => message.content.push(Part::Other("image", WhyNot::Image)),
                "thinking" => thoughts.push_str(block.thinking.as_deref().unwrap_or_default()),
                "tool_use" => {
                    let name = Value::from(block.name.as_deref().ok_or(WhyNot::BadMessages)?);
                    let input = block.input.map(value).transpose()?.unwrap_or_else(|| object([]));
                    message.tool_calls.push(call(block.id.as_deref().map(Value::from), name, input));
                }
                // An answer of a tool is a message of its own, before the rest of the user's.
                "tool_result" => messages.push(Message {
                    role: "tool".into(),
                    content: block.content.map(messages::content).transpose()?.unwrap_or_default(),
                    tool_call_id: block.tool_use_id.as_deref().map(Value::from),
                    ..Message::default()
                }),
                _ => return Err(WhyNot::OtherItem),
            }
        }
        if !thoughts.is_empty() {
            message.reasoning = Some(thoughts.into());
        }
        if !message.content.is_empty() || !message.tool_calls.is_empty() || message.reasoning.is_some() {
            messages.push(message);
        }
    }
    Ok(messages)
}
