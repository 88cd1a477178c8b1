//! A chat: messages and whatever else a template is rendered with.

use std::borrow::Cow;

use minijinja::Value;

use crate::convert;
use crate::endpoint::Endpoint;
use crate::engine::Engine;
use crate::messages::{self, CUT, Message, Prepared};
use crate::request::{Parts, Request, is_there, read};
use crate::rope::Rope;
use crate::template::{ChatTemplate, Earlier, Text, Variables};
use crate::why_not::WhyNot;

/// A chat, ready for a template.
#[derive(Debug)]
pub(crate) struct Chat<'a> {
    /// Messages that are known, as the template takes them; they are the first.
    before: Vec<Value>,
    messages: Vec<Message<'a>>,
    /// Where these end in the list that was parsed.
    ends: Vec<usize>,
    tools: Option<Value>,
    documents: Option<Value>,
    add_generation_prompt: bool,
    continues: bool,
    engine: Engine,
    more: Vec<(String, Value)>,
}

/// A chat's text.
#[derive(Debug)]
pub(crate) struct Rendered {
    /// As far as it is known.
    pub(crate) text: Rope<u8>,
    /// How many bytes are those of the earlier text.
    pub(crate) same: usize,
    /// Where what is written for each message begins; empty if that is not known.
    pub(crate) begins: Vec<usize>,
    /// Why it ends before the prompt does.
    pub(crate) cut: Option<WhyNot>,
    /// The messages, as the template took them.
    pub(crate) messages: Vec<Value>,
    /// Where those that were not known end in the list that was parsed.
    pub(crate) ends: Vec<usize>,
}

/// All that a template is given beside the messages, as it stands in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Around([Option<Box<str>>; 7]);

impl Around {
    pub(crate) fn of(parts: &Parts<'_>) -> Self {
        Self(Self::fields(parts).map(|field| field.map(Box::from)))
    }

    /// Whether it is what this request has.
    pub(crate) fn is_of(&self, parts: &Parts<'_>) -> bool {
        self.0.iter().map(Option::as_deref).eq(Self::fields(parts))
    }

    fn fields<'a>(parts: &Parts<'a>) -> [Option<&'a str>; 7] {
        [
            parts.tools,
            parts.tool_choice,
            parts.documents,
            parts.chat_template_kwargs,
            parts.reasoning_effort,
            parts.add_generation_prompt,
            parts.continue_final_message,
        ]
        .map(|part| part.map(serde_json::value::RawValue::get))
    }
}

impl<'a> Chat<'a> {
    /// That of a request. `defaults` are variables for the template that the engine was started with; `before` are
    /// messages that are known and not in what was parsed.
    pub(crate) fn of(
        request: &Request<'a>,
        defaults: &[(String, Value)],
        engine: Engine,
        before: &[Value],
    ) -> Result<Self, WhyNot> {
        let parts = &request.parts;
        if is_there(parts.chat_template) {
            return Err(WhyNot::OwnTemplate);
        }
        if is_there(parts.previous_response_id) || is_there(parts.conversation) {
            return Err(WhyNot::Stored);
        }
        let (messages, ends) = match request.endpoint {
            Endpoint::Responses => (convert::of_responses(parts)?, Vec::new()),
            Endpoint::Messages => (convert::of_messages(parts)?, Vec::new()),
            Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings => {
                let (messages, ends) = messages::of_chat(parts.messages.ok_or(WhyNot::NoPrompt)?)?;
                if messages.is_empty() && before.is_empty() {
                    return Err(WhyNot::BadMessages);
                }
                (messages, ends)
            }
        };
        let tools = convert::tools(request.endpoint, parts, engine)?;
        let mut more = defaults.to_vec();
        if let Some(effort) = parts.reasoning_effort.filter(|effort| is_there(Some(effort))) {
            more.push(("reasoning_effort".into(), messages::value(effort)?));
        }
        if let Some(kwargs) = parts.chat_template_kwargs.filter(|kwargs| is_there(Some(kwargs))) {
            let kwargs = messages::value(kwargs)?;
            for key in kwargs.try_iter().map_err(|_| WhyNot::BadMessages)? {
                let name = key.as_str().ok_or(WhyNot::BadMessages)?.to_owned();
                more.push((name, kwargs.get_item(&key).unwrap_or_default()));
            }
        }
        Ok(Self {
            before: before.to_vec(),
            messages,
            ends,
            tools,
            documents: parts.documents.filter(|raw| is_there(Some(raw))).map(messages::value).transpose()?,
            add_generation_prompt: read(parts.add_generation_prompt).unwrap_or(true),
            engine,
            continues: read(parts.continue_final_message).unwrap_or(false),
            more,
        })
    }

    /// Whether all that is needed of messages that are known is how the template takes them.
    pub(crate) fn can_follow(&self) -> bool {
        !self.continues
    }

    /// Whether tools are offered: models may have a template of their own for these.
    pub(crate) fn has_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// The text, of which much may be the beginning of an earlier one.
    pub(crate) fn render(self, template: &ChatTemplate, earlier: Earlier<'_>) -> Result<Rendered, WhyNot> {
        let last = if self.continues { self.last_text() } else { None };
        let Prepared { messages: new, cut } = messages::prepare(self.messages, template.as_parts, self.engine);
        let mut messages = self.before;
        messages.extend(new);
        let variables = Variables {
            messages: messages.clone(),
            tools: self.tools,
            documents: self.documents,
            add_generation_prompt: self.add_generation_prompt && !self.continues,
            more: self.more,
        };
        let rendered = template.render_after(earlier, variables);
        let Text { text, same, begins } = rendered.map_err(|_| WhyNot::TemplateRefuses)?;
        let mut rendered = Rendered { text, same, begins, cut, messages, ends: self.ends };
        if self.continues || cut.is_some() {
            let mut text = String::from_utf8(rendered.text.to_vec()).map_err(|_| WhyNot::TemplateRefuses)?;
            if self.continues {
                // The text goes on where the last message ends: what the template writes after it goes.
                let last = last.ok_or(WhyNot::TemplateRefuses)?;
                let end = continued(&text, &last).ok_or(WhyNot::TemplateRefuses)?;
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

    /// The words of the messages one after another: what stands in for the text where there is no template.
    pub(crate) fn words(&self) -> (String, Option<WhyNot>) {
        let mut text = String::new();
        for message in &self.messages {
            text.push_str(&message.role);
            text.push('\n');
            for part in &message.content {
                match part {
                    messages::Part::Text(words) => text.push_str(words),
                    messages::Part::Other(_, why_not) => return (text, Some(*why_not)),
                }
            }
            text.push('\n');
        }
        (text, None)
    }
}

/// Where the last message ends in a text, as transformers finds it.
fn continued(text: &str, last: &str) -> Option<usize> {
    let trimmed: Cow<'_, str> = last.trim().into();
    let at = text.rfind(trimmed.as_ref())?;
    let whole = last.trim_start();
    // A template that does not trim leaves the spaces at the end, and these belong to the message.
    if text[at..].starts_with(whole) { Some(at + whole.len()) } else { Some(at + trimmed.len()) }
}
