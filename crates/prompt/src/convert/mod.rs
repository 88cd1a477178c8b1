//! Conversion of requests of `POST /v1/responses` and `POST /v1/messages` to chats, in the way of the engines.

mod messages;
mod responses;

use std::borrow::Cow;

use memchr::memmem;
use minijinja::Value;
use serde_json::value::RawValue;

pub(crate) use self::messages::from_messages;
pub(crate) use self::responses::from_responses;
use crate::allowance::{CountedList, CountedValue, PART, take};
use crate::dialect::{self, Dialect};
use crate::endpoint::Endpoint;
use crate::messages::{Message, Part, field, given, object, with};
use crate::prompt_tokens::PromptFailure;
use crate::request::{Parts, is_there, read};

/// A chat converted from a request of another API.
#[derive(Debug, Default)]
pub(crate) struct ConvertedChat<'a> {
    /// System message that the request has outside its list of messages.
    pub(crate) first: Option<Message<'a>>,
    /// Messages made from the list of messages in the request.
    pub(crate) messages: Vec<Message<'a>>,
    /// For each item of the request's list: the offset of its end, in bytes, and the number of messages made from all
    /// items so far.
    pub(crate) ends: Vec<(usize, usize)>,
    /// True if the model's answer continues the chat's last message.
    pub(crate) continues: bool,
    /// True if each item of the request's list leaves the messages made from earlier items unchanged, except an
    /// assistant's message just before the item.
    pub(crate) is_apart: bool,
}

impl<'a> ConvertedChat<'a> {
    /// All messages of the chat, the system message first.
    pub(crate) fn all(self) -> Vec<Message<'a>> {
        self.first.into_iter().chain(self.messages).collect()
    }
}

fn system(text: Cow<'_, str>) -> Message<'_> {
    of_text("system", text)
}

/// Creates a message whose content is one text.
fn of_text<'a>(role: impl Into<Cow<'a, str>>, text: Cow<'a, str>) -> Message<'a> {
    Message { role: role.into(), content: vec![Part::Text(text)], ..Message::default() }
}

/// Makes a function call of the assistant, in the form in which chat templates expect it.
fn call(id: Option<Value>, function: Value) -> Value {
    object([("id", id.unwrap_or(Value::from(()))), ("function", function), ("type", "function".into())])
}

/// Fields of a function definition that vLLM passes to chat templates, in vLLM's order.
const FIELDS: [&str; 5] = ["name", "description", "parameters", "strict", "defer_loading"];

/// Fields of a function definition, in the order in which SGLang appends those fields that a request lacks.
const SGLANG_FIELDS: [&str; 5] = ["description", "name", "parameters", "strict", "defer_loading"];

/// Tools of a request as values for chat templates: objects with `type` and `function`. Fields that the engine does not
/// know are left out, and a missing description or missing parameters become null. `None` without tools.
pub(crate) fn tools(endpoint: Endpoint, parts: &Parts<'_>, dialect: Dialect) -> Result<Option<Value>, PromptFailure> {
    let is_given = is_there(parts.tools);
    let choice = given(parts.tool_choice);
    if !dialect.is_vllm() && choice.as_ref().is_some_and(is_none) {
        return Ok(None);
    }
    let listed: Vec<Value> = match parts.tools.filter(|raw| is_there(Some(raw))) {
        Some(raw) => values(raw)?,
        None => Vec::new(),
    };
    let changed = match parts.messages.filter(|_| endpoint == Endpoint::Messages) {
        Some(messages) => apply_changes(&listed, messages, dialect)?,
        None => None,
    };
    if !is_given && changed.is_none() {
        return Ok(None);
    }
    let mut functions = Vec::new();
    for tool in changed.as_ref().unwrap_or(&listed) {
        match endpoint {
            Endpoint::Messages => {
                functions
                    .extend(of_messages(tool, dialect)?.map(|function| (function, present(tool, "defer_loading"))));
            }
            Endpoint::Responses => of_responses(tool, dialect, &mut functions)?,
            _ => functions.push((of_chat(tool, dialect)?, present(tool, "defer_loading"))),
        }
    }
    if !dialect.is_vllm()
        && let Some(name) = choice.as_ref().and_then(chosen)
    {
        functions.retain(|(function, _)| field(function, "name").as_ref() == Some(&name));
    }
    if functions.is_empty() {
        return Ok(None);
    }
    let tools = functions.into_iter().map(|(function, deferred)| {
        let mut tool = vec![("type", "function".into()), ("function", function)];
        if dialect.is_vllm() {
            let deferred = deferred.filter(|_| endpoint != Endpoint::Messages);
            tool.extend(deferred.map(|deferred| ("defer_loading", deferred)));
        } else {
            tool.push(("defer_loading", deferred.unwrap_or(Value::from(()))));
        }
        Value::from_pairs(tool)
    });
    Ok(Some(tools.collect()))
}

/// Parses a list of any JSON values.
fn values(raw: &RawValue) -> Result<Vec<Value>, PromptFailure> {
    let list: CountedList<CountedValue, PART> = read(Some(raw)).ok_or(PromptFailure::BadMessages)?;
    Ok(list.0.into_iter().map(|CountedValue(value)| value).collect())
}

/// True if a request's `tool_choice` allows no tool: the string `none`, or an object of the type `none`.
fn is_none(choice: &Value) -> bool {
    choice.as_str() == Some("none") || word(choice, "type").as_deref() == Some("none")
}

/// Name of the only tool that a request's `tool_choice` allows; `None` if the choice names no tool.
fn chosen(choice: &Value) -> Option<Value> {
    let kind = word(choice, "type")?;
    let inner = field(choice, "function").and_then(|function| field(&function, "name"));
    matches!(&*kind, "function" | "custom" | "tool").then(|| inner.or_else(|| field(choice, "name")))?
}

fn word(map: &Value, name: &str) -> Option<String> {
    field(map, name)?.as_str().map(str::to_owned)
}

fn of_chat(tool: &Value, dialect: Dialect) -> Result<Value, PromptFailure> {
    let mut function = field(tool, "function").ok_or(PromptFailure::BadMessages)?;
    if let Some(deferred) = present(tool, "defer_loading")
        && present(&function, "defer_loading").is_none()
    {
        function = with(&function, "defer_loading", deferred);
    }
    if dialect.is_vllm() {
        return kept(&function, &FIELDS);
    }
    let keys = function.try_iter().map_err(|_| PromptFailure::BadMessages)?;
    let mut order: Vec<String> = keys.filter_map(|key| key.as_str().map(str::to_owned)).collect();
    order.retain(|key| SGLANG_FIELDS.contains(&key.as_str()));
    for name in SGLANG_FIELDS {
        if !order.iter().any(|key| key == name) {
            order.push(name.to_owned());
        }
    }
    kept(&function, &order.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Copies a function definition with only the fields `names`. A missing description or missing parameters become null;
/// other missing fields stay missing.
fn kept(function: &Value, names: &[&str]) -> Result<Value, PromptFailure> {
    present(function, "name").ok_or(PromptFailure::BadMessages)?;
    let fields = names.iter().filter_map(|name| {
        let null = matches!(*name, "description" | "parameters").then(|| Value::from(()));
        Some((*name, present(function, name).or(null)?))
    });
    Ok(Value::from_pairs(fields.collect::<Vec<_>>()))
}

/// Returns the value of a field of a map; `None` if the field is missing or null.
fn present(map: &Value, name: &str) -> Option<Value> {
    field(map, name).filter(|value| !value.is_none())
}

/// Converts a tool of `POST /v1/messages` to a function definition of the chat API; `None` for tools that SGLang
/// reserves for the API itself.
fn of_messages(tool: &Value, dialect: Dialect) -> Result<Option<Value>, PromptFailure> {
    let kind = word(tool, "type").unwrap_or_default();
    let own = ["web_search_", "computer_", "bash_", "text_editor_"];
    if !dialect.is_vllm() && own.iter().any(|prefix| kind.starts_with(prefix)) {
        return Ok(None);
    }
    let mut schema = present(tool, "input_schema").ok_or(PromptFailure::BadMessages)?;
    if field(&schema, "type").is_none() {
        schema = with(&schema, "type", "object".into());
    }
    let mut function = with(tool, "parameters", schema);
    if !dialect.is_vllm() {
        let or = |name, value: Value| present(tool, name).unwrap_or(value);
        function = with(&function, "description", or("description", "".into()));
        function = with(&function, "strict", or("strict", false.into()));
    }
    kept(&function, &FIELDS).map(Some)
}

/// Converts a tool of `POST /v1/responses` and appends its function definitions.
fn of_responses(
    tool: &Value,
    dialect: Dialect,
    functions: &mut Vec<(Value, Option<Value>)>,
) -> Result<(), PromptFailure> {
    let sglang = |function: &Value| {
        let function = with(function, "strict", present(function, "strict").unwrap_or(false.into()));
        kept(&function, &FIELDS[..4])
    };
    let kind = word(tool, "type").ok_or(PromptFailure::OtherItem)?;
    match (&*kind, dialect.is_vllm()) {
        ("function", true) => functions.push((kept(tool, &FIELDS)?, None)),
        ("function", false) => functions.push((sglang(tool)?, None)),
        ("namespace", true) => {
            let namespace = field(tool, "name").ok_or(PromptFailure::BadMessages)?;
            for member in field(tool, "tools").iter().flat_map(|members| members.try_iter().into_iter().flatten()) {
                if word(&member, "type").as_deref() == Some("function") {
                    let name = field(&member, "name").ok_or(PromptFailure::BadMessages)?;
                    let member = with(&member, "name", dialect::name_in(&namespace, &name));
                    functions.push((kept(&member, &FIELDS)?, None));
                }
            }
        }
        ("custom", true) if dialect.has_changing_tools() => {
            let shown = with(tool, "parameters", dialect::custom_parameters());
            functions.push((kept(&shown, &FIELDS[..3])?, None));
        }
        ("custom", false) if present(tool, "name").is_some() => {
            let shown = with(tool, "parameters", dialect::custom_parameters());
            functions.push((sglang(&with(&shown, "description", with_grammar(tool)))?, None));
        }
        // Other types are run by the engine itself and shown to no model. SGLang has namespaces for one family of
        // models only.
        _ => {}
    }
    Ok(())
}

/// Description of a tool of type `custom`, followed by the description of its input.
fn with_grammar(tool: &Value) -> Value {
    let mut parts: Vec<String> = word(tool, "description").filter(|text| !text.is_empty()).into_iter().collect();
    if let Some(format) = field(tool, "format").filter(|format| word(format, "type").as_deref() == Some("grammar")) {
        let syntax = word(&format, "syntax").filter(|syntax| !syntax.is_empty()).unwrap_or_else(|| "lark".to_owned());
        let definition = word(&format, "definition").unwrap_or_default();
        parts.push(format!("The payload must conform to this {syntax} grammar:\n{definition}"));
    }
    if parts.is_empty() { Value::from(()) } else { parts.join("\n\n").into() }
}

/// True if messages of a Messages request may add or remove tools.
fn are_changed(messages: &RawValue) -> bool {
    let json = messages.get().as_bytes();
    [&b"tool_addition"[..], b"tool_removal"].iter().any(|kind| memmem::find(json, kind).is_some())
}

/// Tools of a Messages request after the additions and removals in its messages; `None` if no message changes them.
fn apply_changes(given: &[Value], messages: &RawValue, dialect: Dialect) -> Result<Option<Vec<Value>>, PromptFailure> {
    if !are_changed(messages) {
        return Ok(None);
    }
    let turns = values(messages)?;
    let mut tools = given.to_vec();
    let mut removed: Vec<String> = Vec::new();
    let mut any = false;
    let blocks = turns.iter().filter_map(|turn| field(turn, "content")).filter(|content| content.as_str().is_none());
    for block in blocks.flat_map(|content| content.try_iter().into_iter().flatten().collect::<Vec<_>>()) {
        let kind = word(&block, "type").unwrap_or_default();
        if !matches!(&*kind, "tool_addition" | "tool_removal") {
            continue;
        }
        if !dialect.has_changing_tools() {
            return Err(PromptFailure::OtherItem);
        }
        any = true;
        // A reference may name any tool of the request.
        take(0)?;
        let change = field(&block, "tool").ok_or(PromptFailure::BadMessages)?;
        let definition = field(&change, "definition");
        let name = word(definition.as_ref().unwrap_or(&change), "name").ok_or(PromptFailure::BadMessages)?;
        let at = tools.iter().position(|tool| word(tool, "name").as_deref() == Some(&name));
        match (definition, at) {
            (Some(definition), Some(at)) => tools[at] = definition,
            (Some(definition), None) => tools.push(definition),
            (None, None) => return Err(PromptFailure::BadMessages),
            (None, Some(at)) if kind == "tool_addition" => {
                tools[at] = with(&tools[at], "defer_loading", Value::from(()));
            }
            (None, Some(_)) => {}
        }
        removed.retain(|other| *other != name);
        if kind == "tool_removal" {
            removed.push(name);
        }
    }
    tools.retain(|tool| word(tool, "name").is_none_or(|name| !removed.contains(&name)));
    Ok(any.then_some(tools))
}
