//! The reasons why a prompt has no tokens here.

/// The reason why a prompt was not turned into tokens, or not all of it. The words stay the same from release to
/// release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum PromptFailure {
    /// The body is not a JSON object.
    #[error("the body is not a JSON object")]
    NotJson,
    /// The body has no prompt, or one of a shape that no engine takes.
    #[error("the body has no prompt of a known form")]
    NoPrompt,
    /// The messages are not what an engine takes: no role, a content that is neither a string nor parts, ….
    #[error("the messages are not of a known form")]
    BadMessages,
    /// There is no tokenizer for this model here.
    #[error("there is no tokenizer")]
    NoTokenizer,
    /// The model has no chat template here.
    #[error("there is no chat template")]
    NoTemplate,
    /// The chat template refuses the messages, or fails for them.
    #[error("the chat template refuses the messages")]
    TemplateRefuses,
    /// The request brings a chat template of its own.
    #[error("the request has a chat template of its own")]
    OwnTemplate,
    /// Part of the prompt is an image, and the tokens end before the first of them.
    #[error("the prompt has an image: it is tokenized up to there")]
    Image,
    /// Part of the prompt is sound, and the tokens end before the first of it.
    #[error("the prompt has audio: it is tokenized up to there")]
    Audio,
    /// Part of the prompt is a video, and the tokens end before the first of them.
    #[error("the prompt has a video: it is tokenized up to there")]
    Video,
    /// Part of the prompt is a file or another kind that is not text, and the tokens end before the first of it.
    #[error("the prompt has a part that is not text: it is tokenized up to there")]
    OtherPart,
    /// The prompt is given as embeddings.
    #[error("the prompt is given as embeddings")]
    Embeds,
    /// The prompt goes on from an answer that the engine keeps (`previous_response_id`, `conversation`).
    #[error("the prompt continues an answer that an engine keeps")]
    Stored,
    /// The prompt has items of a kind whose text is not known here.
    #[error("the prompt has items that the router cannot turn into text")]
    OtherItem,
    /// The prompt is longer than the option allows to be turned into tokens here.
    #[error("the prompt is longer than the router tokenizes")]
    TooLong,
    /// The request has its engine compute all of the prompt, whatever is in its cache: by `prompt_logprobs`, or by `echo`
    /// with `logprobs`.
    #[error("the request has the engine compute all of the prompt: no cache counts")]
    SkipsCache,
    /// The engine that was asked for the tokens did not tell them.
    #[error("the engine's /tokenize did not tell the tokens, or not in time")]
    NotAnswered,
    /// The items of the prompt would take many times the memory of the request.
    #[error("the prompt has more items than the router reads")]
    TooManyItems,
    /// The prompt was not read within the time that there is for it, or as far as the tokens go.
    #[error("the prompt took too long to be read")]
    TookTooLong,
    /// There was no memory for what is made of the prompt.
    #[error("there was no memory to read the prompt in")]
    NoRoom,
}

impl PromptFailure {
    /// All reasons, in order, for metrics that begin at zero.
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

    /// True if the prompt has parts that are not text, or may have.
    #[must_use]
    pub(crate) const fn may_have_media(self) -> bool {
        !matches!(self, Self::NotJson | Self::NoTokenizer | Self::NoTemplate) && !self.is_limit()
    }

    /// True if the router reads no such prompts: no engine is asked for their tokens either.
    #[must_use]
    pub const fn is_limit(self) -> bool {
        matches!(self, Self::TooLong | Self::TooManyItems | Self::TookTooLong | Self::NoRoom)
    }

    /// True if it is the client's mistake, of which its engine tells it.
    #[must_use]
    pub const fn is_mistake(self) -> bool {
        matches!(self, Self::NotJson | Self::NoPrompt | Self::BadMessages)
    }

    /// The word for it in metrics.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_word_of_its_own() {
        let words: std::collections::HashSet<_> = PromptFailure::ALL.iter().map(|why| why.word()).collect();
        assert_eq!(words.len(), PromptFailure::ALL.len());
    }
}
