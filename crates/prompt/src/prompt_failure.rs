//! The reasons why a prompt has no tokens here.

use std::path::PathBuf;

/// The reason why a prompt was not tokenized, or not all of it. Names in metrics stay the same from release to release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PromptFailure {
    /// The body is not a JSON object.
    #[error("the body is not a JSON object")]
    NotJson,
    /// The body has no prompt, or one of a form that no engine accepts.
    #[error("the body has no prompt of a known form")]
    NoPrompt,
    /// The messages are not valid for any engine: no role, a content that is neither a string nor parts, and so on.
    #[error("the messages are not of a known form")]
    BadMessages,
    /// There is no tokenizer for this model here.
    #[error("there is no tokenizer")]
    NoTokenizer,
    /// The model has no chat template here.
    #[error("there is no chat template")]
    NoTemplate,
    /// The chat template refuses the messages or fails.
    #[error("the chat template refuses the messages")]
    TemplateRefuses,
    /// The request brings a chat template of its own.
    #[error("the request has a chat template of its own")]
    OwnTemplate,
    /// Part of the prompt is an image, and the tokens end before the first of them.
    #[error("the prompt has an image: it is tokenized up to there")]
    Image,
    /// Part of the prompt is audio, and the tokens end before the first of it.
    #[error("the prompt has audio: it is tokenized up to there")]
    Audio,
    /// Part of the prompt is a video, and the tokens end before the first of them.
    #[error("the prompt has a video: it is tokenized up to there")]
    Video,
    /// Part of the prompt is a file or of another kind that is not text, and the tokens end before the first of it.
    #[error("the prompt has a part that is not text: it is tokenized up to there")]
    OtherPart,
    /// The prompt is given as embeddings.
    #[error("the prompt is given as embeddings")]
    Embeds,
    /// The prompt continues an answer that the engine keeps (`previous_response_id`, `conversation`).
    #[error("the prompt continues an answer that an engine keeps")]
    Stored,
    /// The prompt has items of a kind that cannot be converted to text here.
    #[error("the prompt has items that the router cannot turn into text")]
    OtherItem,
    /// The prompt is longer than the limit of [`Options::max_bytes`](crate::Options::max_bytes).
    #[error("the prompt is longer than the router tokenizes")]
    TooLong,
    /// The engine computes the whole prompt without its cache: `prompt_logprobs`, or `echo` with `logprobs`.
    #[error("the request has the engine compute all of the prompt: no cache counts")]
    SkipsCache,
    /// The engine that was asked for the tokens did not return them.
    #[error("the engine's /tokenize did not tell the tokens, or not in time")]
    NotAnswered,
    /// The values of the prompt would take many times the memory of the request.
    #[error("the prompt has more items than the router reads")]
    TooManyItems,
    /// The deadline passed while the prompt was being read.
    #[error("the prompt took too long to be read")]
    TookTooLong,
    /// The memory for prompts is used up.
    #[error("there was no memory to read the prompt in")]
    NoRoom,
}

impl PromptFailure {
    /// All reasons, in order, for metrics with an initial value of zero.
    pub const ALL: [Self; 20] = [
        Self::NotJson,
        Self::NoPrompt,
        Self::BadMessages,
        Self::NoTokenizer,
        Self::NoTemplate,
        Self::TemplateRefuses,
        Self::OwnTemplate,
        Self::Image,
        Self::Audio,
        Self::Video,
        Self::OtherPart,
        Self::Embeds,
        Self::Stored,
        Self::OtherItem,
        Self::TooLong,
        Self::SkipsCache,
        Self::NotAnswered,
        Self::TooManyItems,
        Self::TookTooLong,
        Self::NoRoom,
    ];

    /// True if the prompt has parts that are not text, or may have some.
    #[must_use]
    pub(crate) const fn may_have_media(self) -> bool {
        !matches!(self, Self::NotJson | Self::NoTokenizer | Self::NoTemplate) && !self.is_limit()
    }

    /// True if a limit of the router was exceeded: engines are not asked for the tokens of the prompt either.
    #[must_use]
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::TooLong | Self::TooManyItems | Self::TookTooLong | Self::NoRoom)
    }

    /// True if the request is invalid, as its engine will report to the client.
    #[must_use]
    pub const fn is_mistake(self) -> bool {
        matches!(self, Self::NotJson | Self::NoPrompt | Self::BadMessages)
    }

    /// The reason's name in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::NoPrompt => "no_prompt",
            Self::BadMessages => "bad_messages",
            Self::NoTokenizer => "no_tokenizer",
            Self::NoTemplate => "no_template",
            Self::TemplateRefuses => "template_refuses",
            Self::OwnTemplate => "own_template",
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::OtherPart => "other_part",
            Self::Embeds => "embeds",
            Self::Stored => "stored",
            Self::OtherItem => "other_item",
            Self::TooLong => "too_long",
            Self::SkipsCache => "skips_cache",
            Self::NotAnswered => "not_answered",
            Self::TooManyItems => "too_many_items",
            Self::TookTooLong => "took_too_long",
            Self::NoRoom => "no_room",
        }
    }
}

/// The reason why no prompt of a model can be tokenized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason, and what would be right.
        message: String,
    },
    /// The chat template is not valid, or uses an unsupported feature.
    #[error("the chat template {message}")]
    Template {
        /// The fault in the template.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_word_of_its_own() {
        let words: std::collections::HashSet<_> = PromptFailure::ALL.iter().map(|why| why.word()).collect();
        assert_eq!(words.len(), PromptFailure::ALL.len());
    }
}
