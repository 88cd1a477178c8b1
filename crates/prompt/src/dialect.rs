//! Dialects: what each engine makes of a request before its template sees a chat.
//!
//! They were read in vLLM 0.30 to 0.33 and in SGLang 0.5.23.

use std::borrow::Cow;

/// A line with which Claude Code names itself. It differs from session to session, so vLLM leaves it out.
pub(crate) const BILLING: &str = "x-anthropic-billing-header";

/// The variable by which vLLM tells templates whether to think.
pub(crate) const THINKS: &str = "enable_thinking";

/// The only argument of a function that stands for a tool of type `custom`.
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

/// The way in which an engine prepares chats, which is the same in some of its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// vLLM up to 0.30: `thinking` of Messages is not looked at.
    Vllm30,
    /// vLLM 0.31: `thinking` that is disabled is the effort `none`, or `low` where a template makes no difference of it.
    Vllm31,
    /// vLLM from 0.32 on: lines of billing go from every system message, tools can come and go among the messages of
    /// Messages, and Responses have tools of type `custom`.
    #[default]
    Vllm32,
    /// SGLang.
    Sglang,
}

impl Dialect {
    /// All dialects, in order of their numbers.
    pub const ALL: [Self; 4] = [Self::Vllm30, Self::Vllm31, Self::Vllm32, Self::Sglang];

    /// The dialect of an engine of a version, such as `0.31.1`. A version that is not known, or newer than those known,
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

    /// The kind of engine that has it.
    #[must_use]
    pub const fn engine(self) -> Engine {
        match self {
            Self::Vllm30 | Self::Vllm31 | Self::Vllm32 => Engine::Vllm,
            Self::Sglang => Engine::Sglang,
        }
    }

    /// The word for it in answers and logs.
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

    /// The separator between the texts of one content.
    pub(crate) const fn between_texts(self) -> &'static str {
        match self.engine() {
            Engine::Vllm => "\n",
            Engine::Sglang => " ",
        }
    }

    /// True if tools can come and go among the messages of Messages, and Responses have tools of type `custom`.
    pub(crate) fn has_changing_tools(self) -> bool {
        self == Self::Vllm32
    }

    /// True if a system prompt that is one string is not there for the engine.
    pub(crate) fn leaves_out_system(self, text: &str) -> bool {
        match self.engine() {
            Engine::Vllm => text.is_empty(),
            Engine::Sglang => text.trim().is_empty(),
        }
    }

    /// True if a text of a list of system blocks, or of a system message among the others, is dropped.
    pub(crate) fn leaves_out_block(self, text: &str) -> bool {
        text.is_empty() || (self.is_vllm() && text.starts_with(BILLING))
    }

    /// The text of a system message among the others as it is taken to the top.
    pub(crate) fn trimmed_inline(self, text: Cow<'_, str>) -> Cow<'_, str> {
        match self.engine() {
            Engine::Vllm => text,
            Engine::Sglang => match text {
                Cow::Borrowed(text) => text.trim().into(),
                Cow::Owned(text) => text.trim().to_owned().into(),
            },
        }
    }

    /// System blocks, or thoughts, as one text.
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
