//! Chat templates: Jinja with what Hugging Face's transformers offers them, which is what engines render with.

mod environment;
mod generation;
#[cfg(test)]
mod golden;
mod output;
mod wants_parts;

use minijinja::{Environment, Value};

use crate::error::Error;

pub(crate) use environment::Clock;
use output::Output;

/// The name of the only template in its environment.
const NAME: &str = "chat";

/// A chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Whether it takes the content of a message as a list of parts: it does if it loops over one.
    pub as_parts: bool,
    special_tokens: Vec<(String, Value)>,
}

/// What a template is rendered with, beside special tokens.
#[derive(Debug, Default)]
pub struct Variables {
    /// The messages, as templates take them.
    pub messages: Vec<Value>,
    /// The tools offered; undefined is not the same as none.
    pub tools: Option<Value>,
    /// For templates that take them.
    pub documents: Option<Value>,
    /// Whether the beginning of the assistant's answer follows.
    pub add_generation_prompt: bool,
    /// Any others, which go before those above but for the messages.
    pub more: Vec<(String, Value)>,
}

impl ChatTemplate {
    /// Compile it. `special_tokens` are what `bos_token`, `eos_token` and so on are in it.
    ///
    /// # Errors
    ///
    /// [`Error::Template`]: it is not valid, or uses what is not supported here.
    pub fn new<K: Into<String>, V: Into<String>>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, Error> {
        Self::with_clock(source, special_tokens, Clock::default())
    }

    pub(crate) fn with_clock<K: Into<String>, V: Into<String>>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (K, V)>,
        clock: Clock,
    ) -> Result<Self, Error> {
        let source = generation::without_marks(source);
        let invalid = |error: minijinja::Error| Error::Template { message: format!("is not valid: {error}") };
        let as_parts = wants_parts::wants_parts(&source).map_err(invalid)?;
        let mut environment = environment::environment(clock);
        environment.add_template_owned(NAME, source).map_err(invalid)?;
        let special_tokens =
            special_tokens.into_iter().map(|(name, token)| (name.into(), Value::from(token.into()))).collect();
        Ok(Self { environment, as_parts, special_tokens })
    }

    /// The text of a chat.
    ///
    /// # Errors
    ///
    /// In words: what the template refuses the messages for, or how it fails for them.
    pub fn render(&self, variables: Variables) -> Result<String, String> {
        self.render_after("", variables).map(|(text, _)| text)
    }

    /// The same, and how many of its bytes are those of an earlier text from the beginning: these are compared and not
    /// written.
    pub(crate) fn render_after(&self, earlier: &str, variables: Variables) -> Result<(String, usize), String> {
        let mut context: Vec<(String, Value)> = self.special_tokens.clone();
        context.push(("tools".into(), variables.tools.unwrap_or(Value::from(()))));
        context.push(("documents".into(), variables.documents.unwrap_or(Value::from(()))));
        context.push(("add_generation_prompt".into(), variables.add_generation_prompt.into()));
        context.extend(variables.more);
        context.push(("messages".into(), Value::from(variables.messages)));
        let context = Value::from_pairs(context);
        let template = self.environment.get_template(NAME).map_err(|error| error.to_string())?;
        let mut output = Output::after(earlier);
        template.render_captured_to(context, &mut output).map_err(|error| error.to_string())?;
        output.text().ok_or_else(|| "a template wrote something that is not text".to_owned())
    }
}
