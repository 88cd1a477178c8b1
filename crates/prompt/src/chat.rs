//! A chat prepared for a chat template, with messages, tools and variables; and the text rendered from it.

use std::borrow::Cow;

use minijinja::Value;

use crate::allowance::taken;
use crate::convert::{self, ConvertedChat};
use crate::dialect::{self, Dialect, ThinkingSwitches};
use crate::endpoint::Endpoint;
use crate::messages::{self, CUT, Message, TemplateMessages};
use crate::prompt_tokens::PromptFailure;
use crate::request::{Parts, Request, is_there, read};
use crate::rope::Rope;
use crate::template::{ChatTemplate, KnownText, Text, Variables};

/// Chat of a request, prepared for a chat template: messages, tools and variables.
#[derive(Debug)]
pub(crate) struct Chat<'a> {
    /// System message that the request has outside its list of messages (`system`, `instructions`).
    first: Option<Message<'a>>,
    /// Messages known from an earlier request of the same chat, as values for the chat template; they precede the new
    /// messages.
    before: Vec<Value>,
    messages: Vec<Message<'a>>,
    /// For each item of the parsed list of messages: the offset of its end, in bytes, and the number of `messages` made
    /// from all items so far.
    ends: Vec<(usize, usize)>,
    /// True if an item of the list (a message of the request) never changes the messages made from earlier items,
    /// except for an assistant's message directly before the item.
    pub(crate) is_apart: bool,
    tools: Option<Value>,
    documents: Option<Value>,
    add_generation_prompt: bool,
    /// True if the model's answer continues the chat's last message.
    continues: bool,
    dialect: Dialect,
    more: Vec<(String, Value)>,
    /// Number of leading new messages that are rendered equally for all supported engines and versions, apart from
    /// lines with billing data.
    pub(crate) plain: usize,
    /// True if all supported engines and versions treat the request's fields other than the messages equally.
    is_plain_beside: bool,
    /// True if the rendered text continues after images, false if it ends at the first image.
    pub(crate) keeps_images: bool,
    /// Memory counted for the new messages (those that no earlier request of the chat contained), in bytes.
    weight: usize,
}

/// Rendered text of a chat, with the data that the chat's next request needs to reuse it.
#[derive(Debug)]
pub(crate) struct ChatText {
    /// Rendered text, up to the first part of a message that is not text.
    pub(crate) text: Rope<u8>,
    /// Number of leading bytes that equal the text of the chat's earlier request.
    pub(crate) same: usize,
    /// Offset at which each message begins in the rendered text, in bytes; empty if unknown.
    pub(crate) begins: Vec<usize>,
    /// Beginning of the answer that the client wrote (a prefilled assistant message), tokenized separately after the
    /// text; `None` if there is none.
    pub(crate) answer: Option<String>,
    /// Reason why the text ends before the prompt ends; `None` if the text is complete.
    pub(crate) cut: Option<PromptFailure>,
    /// Messages of the chat, as values for chat templates.
    pub(crate) messages: Vec<Value>,
    /// For each item of the parsed list of messages: the offset of its end, in bytes, and the number of new messages
    /// made from all items so far.
    pub(crate) ends: Vec<(usize, usize)>,
    /// Memory counted for the new messages (those that no earlier request of the chat contained), in bytes.
    pub(crate) weight: usize,
}

/// All inputs of a chat template besides the messages: JSON of the request's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateContext([Option<Box<str>>; 10]);

impl TemplateContext {
    pub(crate) fn of(parts: &Parts<'_>) -> Self {
        Self(Self::fields(parts).map(|field| field.map(Box::from)))
    }

    /// True if the fields of another request equal these inputs of the chat template, so that the rendered text can be
    /// reused.
    pub(crate) fn is_of(&self, parts: &Parts<'_>) -> bool {
        self.0.iter().map(Option::as_deref).eq(Self::fields(parts))
    }

    /// Length of the JSON of these inputs of the chat template, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().flatten().map(|field| field.len()).sum()
    }

    fn fields<'a>(parts: &Parts<'a>) -> [Option<&'a str>; 10] {
        [
            parts.tools,
            parts.tool_choice,
            parts.documents,
            parts.chat_template_kwargs,
            parts.reasoning_effort,
            parts.reasoning,
            parts.thinking,
            parts.output_config,
            parts.add_generation_prompt,
            parts.continue_final_message,
        ]
        .map(|part| part.map(serde_json::value::RawValue::get))
    }
}

/// Settings and engine behaviour that decide how a request is converted to a chat.
pub(crate) struct Habits<'p> {
    /// Variables for the chat template that were set when the engine was started.
    pub(crate) defaults: &'p [(String, Value)],
    pub(crate) dialect: Dialect,
    /// True if system messages after the first are moved to the top of the chat.
    pub(crate) merges_system: bool,
    pub(crate) thinks: ThinkingSwitches<'p>,
}

impl<'a> Chat<'a> {
    /// Converts a request to a chat. `before`: messages known from an earlier request of the same chat, which the
    /// parsed list does not contain.
    pub(crate) fn of(request: &Request<'a>, habits: &Habits<'_>, before: &[Value]) -> Result<Self, PromptFailure> {
        let &Habits { dialect, merges_system, .. } = habits;
        let parts = &request.parts;
        if is_there(parts.chat_template) {
            return Err(PromptFailure::OwnTemplate);
        }
        if is_there(parts.previous_response_id) || is_there(parts.conversation) {
            return Err(PromptFailure::Stored);
        }
        let goes_on = !before.is_empty();
        let taken_before = taken();
        let ConvertedChat { first, messages, ends, continues, is_apart } = match request.endpoint {
            Endpoint::Responses => convert::from_responses(parts, dialect, merges_system, goes_on)?,
            Endpoint::Messages => convert::from_messages(parts, dialect, merges_system, goes_on)?,
            _ => {
                let (messages, ends) = messages::of_chat(parts.messages.ok_or(PromptFailure::NoPrompt)?, dialect)?;
                if messages.is_empty() && !goes_on {
                    return Err(PromptFailure::BadMessages);
                }
                let ends = ends.into_iter().zip(1..).collect();
                let continues = read(parts.continue_final_message).unwrap_or(false);
                ConvertedChat { first: None, messages, ends, continues, is_apart: true }
            }
        };
        let weight = taken() - taken_before;
        let tools = convert::tools(request.endpoint, parts, dialect)?;
        let mut more = habits.defaults.to_vec();
        let told = dialect.variables(request.endpoint, parts, &habits.thinks);
        // The request's variables override SGLang's own; vLLM's own override the request's, except the one for
        // thinking.
        let is_vllm = dialect.is_vllm();
        let (weak, mut last) = if is_vllm { (Vec::new(), told) } else { (told, Vec::new()) };
        more.extend(weak);
        let takes_kwargs = is_vllm || request.endpoint != Endpoint::Messages;
        if let Some(kwargs) = parts.chat_template_kwargs.filter(|kwargs| takes_kwargs && is_there(Some(kwargs))) {
            let kwargs = messages::value(kwargs)?;
            for key in kwargs.try_iter().map_err(|_| PromptFailure::BadMessages)? {
                let name = key.as_str().ok_or(PromptFailure::BadMessages)?.to_owned();
                last.retain(|(own, _)| own != &name || own != dialect::THINKS);
                more.push((name, kwargs.get_item(&key).unwrap_or_default()));
            }
        }
        more.extend(last);
        let plain = messages.iter().take_while(|message| message.is_plain()).count();
        let ends_with_assistant = match messages.last() {
            Some(last) => last.role == "assistant",
            None => before.last().and_then(|last| messages::field(last, "role")) == Some("assistant".into()),
        };
        let is_plain_beside = !matches!(request.endpoint, Endpoint::Responses | Endpoint::Messages)
            && !ends_with_assistant
            && ![parts.tools, parts.reasoning_effort, parts.reasoning].into_iter().any(is_there)
            && !continues;
        Ok(Self {
            plain,
            is_plain_beside,
            keeps_images: false,
            weight,
            first,
            before: before.to_vec(),
            messages,
            ends,
            is_apart,
            tools,
            documents: parts.documents.filter(|raw| is_there(Some(raw))).map(messages::value).transpose()?,
            add_generation_prompt: read(parts.add_generation_prompt)
                .unwrap_or_else(|| dialect.begins_answer(request.endpoint)),
            dialect,
            continues,
            more,
        })
    }

    /// Moves the system message outside the request's list to the front of the known messages. Returns it as a value
    /// for templates; `None` if there is none. `as_parts`: true if the template accepts contents as lists of parts.
    pub(crate) fn begin(&mut self, as_parts: bool) -> Option<Value> {
        let first = self.first.take()?;
        let made = messages::prepare(vec![first], as_parts, self.keeps_images, self.dialect).messages.pop()?;
        self.before.insert(0, made.clone());
        Some(made)
    }

    /// True if the new messages can be rendered after known messages, which are kept only as template values.
    pub(crate) fn can_follow(&self) -> bool {
        !self.continues
    }

    /// True if all supported engines and versions render the chat equally. `plain`: number of leading messages for
    /// which this is known.
    pub(crate) fn is_plain(&self, plain: usize) -> bool {
        self.is_plain_beside && plain == self.before.len() + self.messages.len()
    }

    /// Number of images in the chat's new messages (those that no earlier request of the chat contained).
    pub(crate) fn images(&self) -> usize {
        self.messages.iter().map(Message::images).sum()
    }

    /// True if the request offers tools to the model: some models have a separate template for requests with tools.
    pub(crate) fn has_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// Renders the text of the chat. The beginning that equals the text of an earlier request is shared with that text.
    pub(crate) fn render(self, template: &ChatTemplate, earlier: KnownText<'_>) -> Result<ChatText, PromptFailure> {
        let is_vllm = self.dialect.is_vllm();
        // SGLang closes the last message and begins the answer with its tokens.
        let continues = self.continues && is_vllm;
        let last = if continues { self.last_text() } else { None };
        let taken_before = taken();
        let TemplateMessages { messages: new, cut } =
            messages::prepare(self.messages, template.as_parts, self.keeps_images, self.dialect);
        let weight = self.weight + taken() - taken_before;
        let mut messages = self.before;
        messages.extend(new);
        let mut shown = messages.clone();
        let mut answer = None;
        if !is_vllm && self.continues {
            answer = dialect::take_answer(&mut shown);
        } else if !is_vllm {
            dialect::end_with_user(&mut shown);
        }
        let variables = Variables {
            messages: shown,
            tools: self.tools,
            documents: self.documents,
            add_generation_prompt: self.add_generation_prompt && !continues,
            more: self.more,
        };
        let rendered = template.render_after(earlier, variables);
        let Text { text, same, begins } = rendered.map_err(|_| PromptFailure::TemplateRefuses)?;
        let answer = answer.filter(|_| cut.is_none());
        let mut rendered = ChatText { text, same, begins, answer, cut, messages, ends: self.ends, weight };
        if continues || cut.is_some() {
            let mut text = String::from_utf8(rendered.text.to_vec()).map_err(|_| PromptFailure::TemplateRefuses)?;
            if continues {
                // The text ends where the last message ends: what the template writes after it is cut off.
                let last = last.ok_or(PromptFailure::TemplateRefuses)?;
                let end = continued(&text, &last).ok_or(PromptFailure::TemplateRefuses)?;
                text.truncate(end);
            }
            if cut.is_some() {
                text.truncate(text.find(CUT).unwrap_or(0));
            }
            rendered.same = same.min(text.len());
            rendered.text = text.into_bytes().into();
            rendered.begins = Vec::new();
        }
        Ok(rendered)
    }

    fn last_text(&self) -> Option<String> {
        match self.messages.last()?.content.as_slice() {
            [.., messages::Part::Text(text)] => Some(text.as_ref().to_owned()),
            _ => None,
        }
    }

    /// Returns the roles and texts of all messages, one after another: a substitute for the rendered text if there is
    /// no chat template. The second value is the reason why the text ends early; `None` if it is complete.
    pub(crate) fn words(&self) -> (String, Option<PromptFailure>) {
        let mut text = String::new();
        for message in self.first.iter().chain(&self.messages) {
            text.push_str(&message.role);
            text.push('\n');
            for part in &message.content {
                match part {
                    messages::Part::Text(words) => text.push_str(words),
                    messages::Part::Tool(name) => text.push_str(name),
                    messages::Part::Other(_, why_not) => return (text, Some(*why_not)),
                }
            }
            text.push('\n');
        }
        (text, None)
    }
}

/// Offset in a rendered text at which the last message ends, determined as in transformers; `None` if the text does not
/// contain the message.
fn continued(text: &str, last: &str) -> Option<usize> {
    let trimmed: Cow<'_, str> = last.trim().into();
    let at = text.rfind(trimmed.as_ref())?;
    let whole = last.trim_start();
    // A template that does not trim keeps the message's trailing spaces.
    if text[at..].starts_with(whole) { Some(at + whole.len()) } else { Some(at + trimmed.len()) }
}
