//! Conversion of the messages of `POST /v1/messages` to a chat.

use std::borrow::Cow;
use std::mem::take;

use minijinja::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ConvertedChat, call, of_text, system};
use crate::allowance::{CountedList, PART};
use crate::dialect::Dialect;
use crate::messages::{Message, Part, listed, object, value};
use crate::prompt_tokens::PromptFailure;
use crate::request::{Parts, is_there, string};
use crate::{convert, json_string};

/// A message of `POST /v1/messages`.
#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

/// A content block of a message of `POST /v1/messages`.
#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "json_string::field")]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "json_string::field")]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "json_string::field")]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "json_string::field")]
    name: Option<Cow<'a, str>>,
    /// Name of the tool in a `tool_reference` block.
    #[serde(borrow, default, deserialize_with = "json_string::field")]
    tool_name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "json_string::field")]
    tool_use_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
}

/// Converts the messages of a request to a chat.
///
/// `merges_system`: true if system messages after the first are moved to the top because the template accepts none
/// elsewhere. `goes_on`: true if messages known from an earlier request precede those in the list.
pub(crate) fn from_messages<'a>(
    parts: &Parts<'a>,
    dialect: Dialect,
    merges_system: bool,
    goes_on: bool,
) -> Result<ConvertedChat<'a>, PromptFailure> {
    let list = parts.messages.ok_or(PromptFailure::BadMessages)?;
    let (turns, ends) = listed::<Turn<'a>>(list).ok_or(PromptFailure::BadMessages)?;
    if turns.is_empty() && !goes_on {
        return Err(PromptFailure::BadMessages);
    }
    let has_system = turns.iter().any(|turn| turn.role == "system");
    let is_mixed = merges_system && has_system || convert::are_changed(list);
    let mut made = ConvertedChat { is_apart: !is_mixed, ..ConvertedChat::default() };
    let messages = &mut made.messages;
    let mut top = Vec::new();
    if let Some(raw) = parts.system.filter(|raw| is_there(Some(raw))) {
        match string(raw.get()) {
            Some(text) => top.extend(Some(text).filter(|text| !dialect.leaves_out_system(text))),
            None => top.extend(texts(raw)?.into_iter().filter(|text| !dialect.leaves_out_block(text))),
        }
    }
    if merges_system {
        for turn in turns.iter().filter(|turn| turn.role == "system") {
            top.extend(inline_system(turn.content, dialect)?);
        }
    }
    made.first = (!top.is_empty()).then(|| system(dialect.joined_blocks(top)));
    for (Turn { role, content }, end) in turns.into_iter().zip(ends) {
        if role == "system" && (merges_system || dialect.is_vllm()) {
            if !merges_system {
                messages.extend(inline_system(content, dialect)?.map(system));
            }
        } else if let Some(text) = string(content.get()) {
            messages.push(of_text(role, text));
        } else {
            let blocks = items(Some(content))?;
            let own = if dialect.is_vllm() {
                vllm(role, blocks, dialect, messages)?
            } else {
                sglang(role, blocks, messages)?
            };
            messages.extend(own);
        }
        made.ends.push((end, messages.len()));
    }
    for message in made.first.iter_mut().chain(messages) {
        dialect.leave_out_billing(&message.role, &mut message.content);
    }
    Ok(made)
}

/// Converts a message of `POST /v1/messages` in the way of vLLM and appends the result: tool results become separate
/// messages before the message.
fn vllm<'a>(
    role: Cow<'a, str>,
    blocks: Vec<Block<'a>>,
    dialect: Dialect,
    messages: &mut Vec<Message<'a>>,
) -> Result<Option<Message<'a>>, PromptFailure> {
    let mut message = Message { role, ..Message::default() };
    let mut thoughts: Option<Cow<'a, str>> = None;
    for block in blocks {
        match block.kind.as_ref() {
            "text" => message.content.extend(block.text.filter(|text| !text.is_empty()).map(Part::Text)),
            "image" if is_there(block.source) => message.content.push(Part::Other("image", PromptFailure::Image)),
            "image" | "redacted_thinking" | "tool_reference" => {}
            "thinking" => {
                if let Some(text) = block.thinking {
                    thoughts = Some(thoughts.map_or(text.clone(), |before| (before.into_owned() + &text).into()));
                }
            }
            "tool_use" => message.tool_calls.push(used(&block, dialect)?),
            "tool_result" if message.role == "user" => vllm_result(&block, messages)?,
            "tool_result" => message.content.push(Part::Text(tool_text(&block)?)),
            _ => return Err(PromptFailure::OtherItem),
        }
    }
    message.reasoning = thoughts.map(|thoughts| thoughts.as_ref().into());
    message.is_list = !matches!(message.content.as_slice(), [] | [Part::Text(_)]);
    // A user's message may consist of tool results alone; any other message is added even if it is empty.
    Ok((!message.content.is_empty() || message.role != "user").then_some(message))
}

/// Converts a tool result in the way of vLLM and appends messages: its texts as lines, then a user's message with its
/// images, then the tools that the result references.
fn vllm_result<'a>(block: &Block<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), PromptFailure> {
    let mut lines = Vec::new();
    let (mut images, mut tools) = (Vec::new(), Vec::new());
    match block.content.map(RawValue::get).and_then(string) {
        Some(text) => lines.push(text),
        None => {
            for item in items(block.content)? {
                match item.kind.as_ref() {
                    "text" => lines.push(item.text.unwrap_or_default()),
                    "image" => images.push(Part::Other("image", PromptFailure::Image)),
                    "tool_reference" => tools.extend(referred(item)),
                    _ => {}
                }
            }
        }
    }
    let id = || Some(Value::from(block.tool_use_id.as_deref().unwrap_or_default()));
    let text = if lines.len() == 1 { lines.remove(0) } else { lines.join("\n").into() };
    messages.push(Message { tool_call_id: id(), ..of_text("tool", text) });
    if !images.is_empty() {
        messages.push(Message { role: "user".into(), content: images, is_list: true, ..Message::default() });
    }
    if !tools.is_empty() {
        let role = "tool".into();
        messages.push(Message { role, content: tools, tool_call_id: id(), is_list: true, ..Message::default() });
    }
    Ok(())
}

/// Converts a message of `POST /v1/messages` in the way of SGLang and appends the result: tool results keep their place
/// among the user's texts.
fn sglang<'a>(
    role: Cow<'a, str>,
    blocks: Vec<Block<'a>>,
    messages: &mut Vec<Message<'a>>,
) -> Result<Option<Message<'a>>, PromptFailure> {
    let mut message = Message { role, ..Message::default() };
    let is_user = message.role == "user";
    if message.role == "assistant" {
        // SGLang refuses a history with encrypted thoughts.
        if blocks.iter().any(|block| block.kind == "redacted_thinking") {
            return Err(PromptFailure::OtherItem);
        }
        let thoughts =
            blocks.iter().filter(|block| block.kind == "thinking").filter_map(|block| block.thinking.clone());
        let thoughts: Vec<Cow<'_, str>> = thoughts.filter(|text| !text.is_empty()).collect();
        if !thoughts.is_empty() {
            // Most models that think use these marks.
            let thoughts = Dialect::Sglang.joined_blocks(thoughts);
            message.content.push(Part::Text(format!("<think>{thoughts}\n</think>").into()));
        }
    }
    for block in blocks {
        match block.kind.as_ref() {
            // An empty message is added, so that the turn is not lost.
            "text" => message.content.push(Part::Text(block.text.ok_or(PromptFailure::BadMessages)?)),
            "image" if is_there(block.source) => message.content.push(Part::Other("image", PromptFailure::Image)),
            "image" | "tool_reference" | "thinking" | "redacted_thinking" => {}
            "search_result" => return Err(PromptFailure::OtherItem),
            "tool_use" => message.tool_calls.push(used(&block, Dialect::Sglang)?),
            "tool_result" if is_user => {
                if !message.content.is_empty() {
                    let content = take(&mut message.content);
                    let is_list = !matches!(content.as_slice(), [Part::Text(_)]);
                    messages.push(Message { role: message.role.clone(), content, is_list, ..Message::default() });
                }
                sglang_result(&block, messages)?;
            }
            "tool_result" => message.content.push(Part::Text(tool_text(&block)?)),
            _ => return Err(PromptFailure::OtherItem),
        }
    }
    message.is_list = !matches!(message.content.as_slice(), [] | [Part::Text(_)]);
    Ok((!message.content.is_empty() || !message.tool_calls.is_empty() || !is_user).then_some(message))
}

/// Converts a tool result in the way of SGLang and appends messages: one for its texts and images, and one for each
/// sequence of consecutive tool references.
fn sglang_result<'a>(block: &Block<'a>, messages: &mut Vec<Message<'a>>) -> Result<(), PromptFailure> {
    let id = block.tool_use_id.as_deref().or(block.id.as_deref()).unwrap_or_default();
    let id = || Some(Value::from(id));
    if let Some(text) = block.content.map(RawValue::get).and_then(string) {
        messages.push(Message { tool_call_id: id(), ..of_text("tool", text) });
        return Ok(());
    }
    let mut parts = Vec::new();
    for item in items(block.content)? {
        match item.kind.as_ref() {
            "text" => parts.extend(item.text.filter(|text| !text.is_empty()).map(Part::Text)),
            "image" if is_there(item.source) => parts.push(Part::Other("image", PromptFailure::Image)),
            "tool_reference" => parts.extend(referred(item)),
            "search_result" => return Err(PromptFailure::OtherItem),
            _ => {}
        }
    }
    if parts.is_empty() {
        messages.push(Message { tool_call_id: id(), ..of_text("tool", "".into()) });
    }
    let is_tool = |part: &Part<'_>| matches!(part, Part::Tool(_));
    let mut parts = parts.into_iter().peekable();
    while let Some(first) = parts.next() {
        let kind = is_tool(&first);
        let mut content = vec![first];
        content.extend(std::iter::from_fn(|| parts.next_if(|part| is_tool(part) == kind)));
        let is_list = !matches!(content.as_slice(), [Part::Text(_)]);
        messages.push(Message { role: "tool".into(), content, tool_call_id: id(), is_list, ..Message::default() });
    }
    Ok(())
}

/// Parses the blocks of a tool result whose content is a list.
fn items(content: Option<&RawValue>) -> Result<Vec<Block<'_>>, PromptFailure> {
    match content.filter(|raw| is_there(Some(raw))) {
        Some(raw) => {
            let blocks: CountedList<Block<'_>, PART> =
                serde_json::from_str(raw.get()).map_err(|_| PromptFailure::BadMessages)?;
            Ok(blocks.0)
        }
        None => Ok(Vec::new()),
    }
}

fn referred(block: Block<'_>) -> Option<Part<'_>> {
    let name = block.tool_name.filter(|name| !name.is_empty()).or(block.name)?;
    (!name.is_empty()).then_some(Part::Tool(name))
}

fn used(block: &Block<'_>, dialect: Dialect) -> Result<Value, PromptFailure> {
    let name = Value::from(block.name.as_deref().unwrap_or_default());
    let input = block.input.filter(|raw| is_there(Some(raw))).map(value).transpose()?.unwrap_or_else(|| object([]));
    let function = object([("name", name), ("arguments", input)]);
    let call = call(block.id.as_deref().map(Value::from), function.clone());
    Ok(dialect.call(&call, &function))
}

/// Returns the text of a tool result in a message whose role is not user. A list of blocks has no text: engines write
/// it as Python's `repr`, which is not reproduced.
fn tool_text<'a>(block: &Block<'a>) -> Result<Cow<'a, str>, PromptFailure> {
    let text = match block.content.filter(|raw| is_there(Some(raw))) {
        Some(raw) => string(raw.get()).ok_or(PromptFailure::OtherItem)?,
        None => "".into(),
    };
    Ok(format!("Tool result: {text}").into())
}

/// Returns the texts of the text blocks in a JSON list of content blocks.
fn texts(raw: &RawValue) -> Result<Vec<Cow<'_, str>>, PromptFailure> {
    Ok(items(Some(raw))?.into_iter().filter(|block| block.kind == "text").filter_map(|block| block.text).collect())
}

/// Returns the text of a system message after the first one; `None` if the engine drops all of the message.
fn inline_system(content: &RawValue, dialect: Dialect) -> Result<Option<Cow<'_, str>>, PromptFailure> {
    let texts = match string(content.get()) {
        Some(text) => vec![text],
        None => texts(content)?,
    };
    let kept: Vec<_> = texts
        .into_iter()
        .map(|text| dialect.trimmed_inline(text))
        .filter(|text| !dialect.leaves_out_block(text))
        .collect();
    Ok(if kept.is_empty() { None } else { Some(dialect.joined_blocks(kept)) })
}
