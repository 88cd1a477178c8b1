//! Conversion of the input of `POST /v1/responses` to a chat.

use std::borrow::Cow;
use std::mem::take;

use minijinja::Value;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{ConvertedChat, call, of_text, system};
use crate::allowance::CountedList;
use crate::dialect::{self, Dialect};
use crate::messages::{self, Message, Part, is_object, listed, object, parsed};
use crate::prompt_tokens::PromptFailure;
use crate::request::{Parts, is_there, string};

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
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    /// Input of a call of a tool of type `custom`.
    #[serde(borrow)]
    input: Option<Cow<'a, str>>,
    #[serde(borrow)]
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    encrypted_content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow)]
    phase: Option<Cow<'a, str>>,
}

/// Converts the input of a request to a chat.
///
/// `merges_system`: true if SGLang moves system messages to the top because the template accepts none elsewhere.
/// `goes_on`: true if messages known from an earlier request precede those in the list.
pub(crate) fn from_responses<'a>(
    parts: &Parts<'a>,
    dialect: Dialect,
    merges_system: bool,
    goes_on: bool,
) -> Result<ConvertedChat<'a>, PromptFailure> {
    let mut made = ConvertedChat::default();
    let instructions = parts.instructions.and_then(|raw| string(raw.get())).filter(|text| !text.is_empty());
    made.first = instructions.map(system);
    let input = parts.input.ok_or(PromptFailure::NoPrompt)?;
    let messages = &mut made.messages;
    if let Some(text) = string(input.get()) {
        messages.push(of_text("user", text));
    } else {
        let (items, ends) = listed::<Item<'a>>(input).ok_or(PromptFailure::NoPrompt)?;
        made.continues = dialect.is_vllm() && items.last().is_some_and(is_begun);
        // Whether the answer continues is known from the last item, which must therefore be in the list.
        made.is_apart = !made.continues && !items.is_empty();
        let mut phase = None;
        for (item, end) in items.into_iter().zip(ends) {
            if dialect.is_vllm() {
                vllm(item, dialect, messages)?;
            } else {
                sglang(item, &mut phase, messages)?;
            }
            made.ends.push((end, messages.len()));
        }
        if messages.is_empty() && made.first.is_none() && !goes_on {
            return Err(PromptFailure::NoPrompt);
        }
    }
    if !dialect.is_vllm() && merges_system && messages.iter().any(|message| message.role == "system") {
        *messages = with_system_first(made.first.take().into_iter().chain(take(messages)).collect());
        made.is_apart = false;
    }
    for message in made.first.iter_mut().chain(messages).filter(|message| !message.is_list) {
        dialect.leave_out_billing(&message.role, &mut message.content);
    }
    Ok(made)
}

/// True if an item is an assistant's unfinished message, which the model's answer continues.
fn is_begun(item: &Item<'_>) -> bool {
    matches!(item.kind.as_deref(), None | Some("message" | "reasoning"))
        && matches!(item.status.as_deref(), Some("in_progress" | "incomplete"))
}

/// Converts an item of `POST /v1/responses` in the way of vLLM and appends the result. Consecutive texts, thoughts and
/// calls of the assistant form one message.
fn vllm<'a>(item: Item<'a>, dialect: Dialect, messages: &mut Vec<Message<'a>>) -> Result<(), PromptFailure> {
    let id = item.call_id.as_deref().map(Value::from);
    let name = || item.name.as_deref().map(Value::from).ok_or(PromptFailure::BadMessages);
    match item.kind.as_deref() {
        Some("function_call") => {
            let arguments = arguments(item.arguments);
            let name = match item.namespace.as_deref().filter(|it| !it.is_empty()) {
                Some(namespace) => dialect::name_in(&namespace.into(), &name()?),
                None => name()?,
            };
            assistant(messages, |_| true).tool_calls.push(called(id, name, arguments, dialect));
        }
        Some("custom_tool_call") if dialect.has_changing_tools() => {
            let arguments = object([(dialect::CUSTOM_INPUT, item.input.as_deref().unwrap_or_default().into())]);
            assistant(messages, |_| true).tool_calls.push(called(id, name()?, arguments, dialect));
        }
        Some("custom_tool_call_output") if !dialect.has_changing_tools() => return Err(PromptFailure::OtherItem),
        Some("function_call_output" | "custom_tool_call_output") => messages.push(Message {
            role: "tool".into(),
            is_list: item.output.is_some_and(is_list),
            content: item.output.map(messages::content).transpose()?.unwrap_or_default(),
            tool_call_id: id,
            ..Message::default()
        }),
        Some("reasoning") => {
            // vLLM refuses encrypted thoughts, and thoughts without a summary.
            if item.encrypted_content.is_some_and(|text| !text.is_empty()) || item.summary.is_none() {
                return Err(PromptFailure::OtherItem);
            }
            let first = |raw: Option<&'a RawValue>| Some(thoughts(raw).into_iter().next()?.unwrap_or_default());
            let text = first(item.content).or_else(|| first(item.summary)).unwrap_or_default();
            assistant(messages, |last| last.reasoning.is_none()).reasoning = Some(text.as_ref().into());
        }
        None | Some("message") => {
            let role = item.role.ok_or(PromptFailure::BadMessages)?;
            let is_list = item.content.is_some_and(is_list);
            let mut content = item.content.map(messages::content).transpose()?.unwrap_or_default();
            if role == "assistant" && !content.is_empty() {
                content.truncate(1);
                let said = assistant(messages, |last| last.content.is_empty());
                said.content = content;
            } else {
                messages.push(Message { role, content, is_list, ..Message::default() });
            }
        }
        Some(_) => return Err(PromptFailure::OtherItem),
    }
    Ok(())
}

/// Returns the last message if it is the assistant's and can be extended by another item; else appends a new message of
/// the assistant.
fn assistant<'m, 'a>(
    messages: &'m mut Vec<Message<'a>>,
    can_take: impl Fn(&Message<'a>) -> bool,
) -> &'m mut Message<'a> {
    if !messages.last().is_some_and(|last| last.role == "assistant" && can_take(last)) {
        messages.push(Message { role: "assistant".into(), ..Message::default() });
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn is_list(raw: &RawValue) -> bool {
    raw.get().starts_with('[')
}

/// Parsed arguments of a tool call. Engines replace anything but an object by an empty object, so that the chat can
/// continue.
fn arguments(raw: Option<&RawValue>) -> Value {
    let json = raw.map(|raw| string(raw.get()).unwrap_or(raw.get().into())).unwrap_or_default();
    parsed(&json).filter(is_object).unwrap_or_else(|| object([]))
}

/// Texts of the assistant's thoughts in a JSON list.
fn thoughts(raw: Option<&RawValue>) -> Vec<Option<Cow<'_, str>>> {
    #[derive(Deserialize)]
    struct Thought<'a> {
        #[serde(borrow)]
        text: Option<Cow<'a, str>>,
    }
    let Some(raw) = raw.filter(|raw| is_there(Some(raw))) else { return Vec::new() };
    let all: Option<CountedList<Thought<'_>, 32>> = serde_json::from_str(raw.get()).ok();
    all.map(|all| all.0).unwrap_or_default().into_iter().map(|thought| thought.text).collect()
}

/// Makes a function call with its fields in the order of the engine of the dialect `dialect`. vLLM keeps the given
/// order.
fn called(id: Option<Value>, name: Value, arguments: Value, dialect: Dialect) -> Value {
    let function = object([("name", name), ("arguments", arguments)]);
    let call = call(id, function.clone());
    if dialect.is_vllm() { call } else { dialect.call(&call, &function) }
}

/// Converts an item of `POST /v1/responses` in the way of SGLang and appends the result. Consecutive texts, thoughts
/// and calls of the assistant form one message, unless their `phase` differs.
fn sglang<'a>(
    item: Item<'a>,
    phase: &mut Option<Cow<'a, str>>,
    messages: &mut Vec<Message<'a>>,
) -> Result<(), PromptFailure> {
    let id = item.call_id.as_deref().map(Value::from);
    let mut made = Message { role: "assistant".into(), ..Message::default() };
    let mut own = None;
    match item.kind.as_deref() {
        Some("function_call") => {
            let name = Value::from(item.name.as_deref().ok_or(PromptFailure::BadMessages)?);
            made.tool_calls.push(called(id, name, arguments(item.arguments), Dialect::Sglang));
        }
        Some("custom_tool_call") => {
            let name = Value::from(item.name.as_deref().ok_or(PromptFailure::BadMessages)?);
            let input = item.input.as_deref().unwrap_or_default().into();
            made.tool_calls.push(called(id, name, object([(dialect::CUSTOM_INPUT, input)]), Dialect::Sglang));
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let text = match item.output.map(RawValue::get).map(|json| (json, string(json))) {
                Some((_, Some(text))) => text,
                Some((json, None)) if json.starts_with('[') => {
                    thoughts(item.output).into_iter().flatten().collect::<Vec<_>>().concat().into()
                }
                _ => "".into(),
            };
            messages.push(Message { tool_call_id: id, ..of_text("tool", text) });
            return Ok(());
        }
        Some("reasoning") => {
            let texts = |raw| thoughts(raw).into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>();
            let mut all = texts(item.summary);
            if all.is_empty() {
                all = texts(item.content);
            }
            if all.is_empty() {
                // Thoughts packed by SGLang are not unpacked here.
                let is_packed = item.encrypted_content.is_some_and(|text| text.starts_with("sglang-reasoning-v1."));
                return if is_packed { Err(PromptFailure::OtherItem) } else { Ok(()) };
            }
            made.reasoning = Some(all.join("\n").into());
        }
        None | Some("message") => {
            made.role = item.role.ok_or(PromptFailure::BadMessages)?;
            made.is_list = item.content.is_some_and(is_list);
            made.content = item.content.map(messages::content).transpose()?.unwrap_or_default();
            own = item.phase;
            if made.role == "developer" {
                made.role = "system".into();
                labelled(&mut made);
            }
        }
        Some(_) => return Err(PromptFailure::OtherItem),
    }
    match messages.last_mut() {
        Some(last) if last.role == "assistant" && made.role == "assistant" => {
            let is_thought = last.content.is_empty() && last.tool_calls.is_empty() && phase.is_none();
            if *phase != own && !is_thought {
                messages.push(made);
                *phase = own;
                return Ok(());
            }
            *phase = own.or(phase.take());
            join(last, made);
        }
        _ => {
            *phase = own;
            messages.push(made);
        }
    }
    Ok(())
}

/// Puts a label before the text of a message with the role `developer`, since chat templates know only the role
/// `system`.
fn labelled(message: &mut Message<'_>) {
    const LABEL: &str = "Developer instructions:";
    let first = message.content.iter_mut().find_map(|part| match part {
        Part::Text(text) => Some(text),
        _ => None,
    });
    match first {
        Some(text) => *text = format!("{LABEL}\n{text}").into(),
        None => message.content.insert(0, Part::Text(LABEL.into())),
    }
}

/// Appends an assistant's message to the preceding message of the assistant.
fn join<'a>(last: &mut Message<'a>, made: Message<'a>) {
    let is_said = |message: &Message<'_>| match message.content.as_slice() {
        [] => message.is_list,
        [Part::Text(text)] => message.is_list || !text.is_empty(),
        _ => true,
    };
    if is_said(&made) {
        match (is_said(last), last.is_list || made.is_list) {
            (false, _) => (last.content, last.is_list) = (made.content, made.is_list),
            (true, false) => {
                let text = last.content.iter().chain(&made.content).filter_map(Part::text).collect::<Vec<_>>();
                last.content = vec![Part::Text(text.join("\n\n").into())];
            }
            (true, true) => {
                last.content.extend(made.content);
                last.is_list = true;
            }
        }
    }
    last.tool_calls.extend(made.tool_calls);
    last.reasoning = match (last.reasoning.take(), made.reasoning) {
        (Some(before), Some(new)) => Some(format!("{before}\n{new}").into()),
        (before, new) => before.or(new),
    };
}

/// Moves all system messages of a chat to the top, joined to one message.
fn with_system_first(messages: Vec<Message<'_>>) -> Vec<Message<'_>> {
    let (systems, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|message| message.role == "system");
    let texts: Vec<_> = systems.iter().flat_map(|message| &message.content).filter_map(Part::text).collect();
    if texts.is_empty() {
        return others;
    }
    let first = system(texts.join("\n\n").into());
    std::iter::once(first).chain(others).collect()
}
