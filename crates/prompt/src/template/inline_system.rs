//! Inline system messages: how a template treats a system message that is not the first, tested as engines test it.

use minijinja::{Environment, Value};

use super::environment::{Clock, environment};
use super::syntax;
use crate::dialect::{Dialect, Engine};
use crate::messages::object;

/// Name of the only template in its environment.
const NAME: &str = "chat";

/// A text that no template writes by itself.
const SENTINEL: &str = "\u{e002}the second system message\u{e003}";

/// A template's treatment of a system message after a user's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InlineSystem {
    Written,
    LeftOut,
    Refused,
}

impl InlineSystem {
    /// Tests a template. Engines test it without the functions that transformers adds to Jinja, so a template that
    /// needs one of them, or marks generated text, counts as one that refuses.
    pub(super) fn of(source: &str) -> Self {
        if syntax::without_marks(source) != source {
            return Self::Refused;
        }
        match text(environment(Clock::default()), source) {
            Err(_) => Self::Refused,
            Ok(text) if text.contains(SENTINEL) => Self::Written,
            Ok(_) => Self::LeftOut,
        }
    }

    /// True if the engine moves inline system messages to the top.
    pub(super) fn is_merged(self, dialect: Dialect) -> bool {
        match dialect.engine() {
            Engine::Vllm => self == Self::Refused,
            Engine::Sglang => self != Self::Written,
        }
    }
}

fn text(mut environment: Environment<'static>, source: &str) -> Result<String, minijinja::Error> {
    environment.remove_global("raise_exception");
    environment.remove_global("strftime_now");
    environment.add_template_owned(NAME, source.to_owned())?;
    let message = |role: &str, text: &str| object([("role", role.into()), ("content", text.into())]);
    let messages = [("system", "t"), ("user", "t"), ("system", SENTINEL), ("user", "t")];
    let messages: Value = messages.into_iter().map(|(role, text)| message(role, text)).collect();
    let context = object([("messages", messages), ("add_generation_prompt", false.into())]);
    environment.get_template(NAME)?.render(context)
}
