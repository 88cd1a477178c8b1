//! Dialects: how each engine converts a request before its template is rendered.
//!
//! Read from the sources of vLLM 0.30 to 0.33 and SGLang 0.5.23.

use std::borrow::Cow;

/// Prefix of a line by which Claude Code identifies itself. It differs from session to session, so vLLM drops it.
pub(crate) const BILLING: &str = "x-anthropic-billing-header";

/// The variable by which vLLM turns a template's thinking on or off.
pub(crate) const THINKS: &str = "enable_thinking";

/// The only parameter of the function that represents a tool of type `custom`.
pub(crate) const CUSTOM_INPUT: &str = "input";

/// A kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
}

/// A way of preparing chats, shared by a range of versions of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// vLLM up to 0.30: ignores `thinking` of Messages.
    Vllm30,
    /// vLLM 0.31: disabled `thinking` becomes the effort `none`, or `low` for a template to which `none` makes no
    /// difference.
    Vllm31,
    /// vLLM from 0.32 on: drops billing lines from every system message; Messages may add and remove tools; Responses
    /// may have tools of type `custom`.
    #[default]
    Vllm32,
    /// SGLang.
    Sglang,
}

impl Dialect {
    /// All dialects, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Vllm30, Self::Vllm31, Self::Vllm32, Self::Sglang];

    /// The dialect of an engine's version, such as `0.31.1`. An unknown version, or one newer than the known ones,
    /// counts as the newest.
    #[must_use]
    pub fn of(engine: Engine, version: Option<&str>) -> Self {
        let Engine::Vllm = engine else { return Self::Sglang };
        let mut numbers = version.unwrap_or_default().trim_start_matches('v').split('.');
        let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
        match (next(), next()) {
            (Some(0), Some(..=30)) => Self::Vllm30,
            (Some(0), Some(31)) => Self::Vllm31,
            _ => Self::Vllm32,
        }
    }

    /// The engine of the dialect.
    #[must_use]
    pub const fn engine(self) -> Engine {
        match self {
            Self::Vllm30 | Self::Vllm31 | Self::Vllm32 => Engine::Vllm,
            Self::Sglang => Engine::Sglang,
        }
    }

    /// The dialect's name in answers and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Vllm30 => "vllm-0.30",
            Self::Vllm31 => "vllm-0.31",
            Self::Vllm32 => "vllm-0.32",
            Self::Sglang => "sglang",
        }
    }

    pub(crate) fn is_vllm(self) -> bool {
        self.engine() == Engine::Vllm
    }

    /// The separator between several texts of one content.
    pub(crate) const fn between_texts(self) -> &'static str {
        match self.engine() {
            Engine::Vllm => "\n",
            Engine::Sglang => " ",
        }
    }

    /// True if Messages may add and remove tools, and Responses may have tools of type `custom`.
    pub(crate) fn has_changing_tools(self) -> bool {
        self == Self::Vllm32
    }

    /// True if the engine drops a system prompt given as one string.
    pub(crate) fn leaves_out_system(self, text: &str) -> bool {
        match self.engine() {
            Engine::Vllm => text.is_empty(),
            Engine::Sglang => text.trim().is_empty(),
        }
    }

    /// True if the engine drops this text of a list of system blocks, or of a system message among the others.
    pub(crate) fn leaves_out_block(self, text: &str) -> bool {
        text.is_empty() || (self.is_vllm() && text.starts_with(BILLING))
    }

    /// The text of a system message among the others after it is moved to the top.
    pub(crate) fn trimmed_inline(self, text: Cow<'_, str>) -> Cow<'_, str> {
        match self.engine() {
            Engine::Vllm => text,
            Engine::Sglang => match text {
                Cow::Borrowed(text) => text.trim().into(),
                Cow::Owned(text) => text.trim().to_owned().into(),
            },
        }
    }

    /// System blocks, or thoughts, joined to one text.
    pub(crate) fn joined_blocks(self, mut texts: Vec<Cow<'_, str>>) -> Cow<'_, str> {
        if texts.len() == 1 {
            return texts.remove(0);
        }
        texts
            .join(match self.engine() {
                Engine::Vllm => "",
                Engine::Sglang => "\n",
            })
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (version, expected) in [
            (Some("0.22.1"), Dialect::Vllm30),
            (Some("0.30.0"), Dialect::Vllm30),
            (Some("v0.31.0rc1"), Dialect::Vllm31),
            (Some("0.32.1.dev3+g1a2b"), Dialect::Vllm32),
            (Some("0.33.0"), Dialect::Vllm32),
            (Some("0.99"), Dialect::Vllm32),
            (Some("1.0.0"), Dialect::Vllm32),
            (Some("dev"), Dialect::Vllm32),
            (None, Dialect::Vllm32),
        ] {
            assert_eq!(Dialect::of(Engine::Vllm, version), expected, "{version:?}");
        }
        assert_eq!(Dialect::of(Engine::Sglang, Some("0.5.23")), Dialect::Sglang);
    }
}
