//! A chat: messages and whatever else a template is rendered with.

use std::borrow::Cow;

use minijinja::Value;

use crate::convert;
use crate::endpoint::Endpoint;
use crate::messages::{self, CUT, Message, Prepared};
use crate::request::{Request, is_there, read};
use crate::template::{ChatTemplate, Variables};
use crate::why_not::WhyNot;

/// A chat, ready for a template.
#[derive(Debug)]
pub(crate) struct Chat<'a> {
    messages: Vec<Message<'a>>,
    tools: Option<Value>,
    documents: Option<Value>,
    add_generation_prompt: bool,
    continues: bool,
    more: Vec<(String, Value)>,
}

/// A chat's text.
#[derive(Debug)]
pub(crate) struct Rendered {
    /// As far as it is known.
    pub(crate) text: String,
    /// Why it ends before the prompt does.
    pub(crate) cut: Option<WhyNot>,
}

impl<'a> Chat<'a> {
    /// That of a request. `defaults` are variables for the template that the engine was started with.
    pub(crate) fn of(request: &Request<'a>, defaults: &[(String, Value)]) -> Result<Self, WhyNot> {
        let parts = &request.parts;
        if is_there(parts.chat_template) {
            return Err(WhyNot::OwnTemplate);
        }
        if is_there(parts.previous_response_id) || is_there(parts.conversation) {
            return Err(WhyNot::Stored);
        }
        let messages = match request.endpoint {
            Endpoint::Responses => convert::of_responses(parts)?,
            Endpoint::Messages => convert::of_messages(parts)?,
            Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings => {
                messages::of_chat(parts.messages.ok_or(WhyNot::NoPrompt)?)?
            }
        };
        let tools = convert::tools(request.endpoint, parts.tools)?;
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
            messages,
            tools,
            documents: parts.documents.filter(|raw| is_there(Some(raw))).map(messages::value).transpose()?,
            add_generation_prompt: read(parts.add_generation_prompt).unwrap_or(true),
            continues: read(parts.continue_final_message).unwrap_or(false),
            more,
        })
    }

    /// Whether tools are offered: models may have a template of their own for these.
    pub(crate) fn has_tools(&self) -> bool {
        self.tools.is_some()
    }

    /// The text.
    pub(crate) fn render(self, template: &ChatTemplate) -> Result<Rendered, WhyNot> {
        let last = if self.continues { self.last_text() } else { None };
        let Prepared { messages, cut } = messages::prepare(self.messages, template.as_parts);
        let variables = Variables {
            messages,
            tools: self.tools,
            documents: self.documents,
            add_generation_prompt: self.add_generation_prompt && !self.continues,
            more: self.more,
        };
        let mut text = template.render(variables).map_err(|_| WhyNot::TemplateRefuses)?;
        if self.continues {
            // The text goes on where the last message ends: what the template writes after it goes.
            let last = last.ok_or(WhyNot::TemplateRefuses)?;
            let end = continued(&text, &last).ok_or(WhyNot::TemplateRefuses)?;
            text.truncate(end);
        }
        if cut.is_some() {
            text.truncate(text.find(CUT).unwrap_or(0));
        }
        Ok(Rendered { text, cut })
    }

    fn last_text(&self) -> Option<String> {
        match self.messages.last()?.content.as_slice() {
            [.., messages::Part::Text(text)] => Some(text.as_ref().to_owned()),
            _ => None,
        }
    }

    /// The words of the messages one after another: what stands in for the text where there is no template.
    pub(crate) fn words(&self) -> Rendered {
        let mut text = String::new();
        for message in &self.messages {
            text.push_str(&message.role);
            text.push('\n');
            for part in &message.content {
                match part {
                    messages::Part::Text(words) => text.push_str(words),
                    messages::Part::Other(_, why_not) => return Rendered { text, cut: Some(*why_not) },
                }
            }
            text.push('\n');
        }
        Rendered { text, cut: None }
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
