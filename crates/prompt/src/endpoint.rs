//! Endpoints of engines whose requests have prompts.

/// An endpoint whose requests have prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /generate` of SGLang: token ids or text.
    Generate,
    /// `POST /inference/v1/generate` of vLLM: token ids.
    Tokens,
    /// `POST /v1/chat/completions/tokens`, added to vLLM by training frameworks: a chat whose prompt is given as token
    /// ids.
    ChatTokens,
}

impl Endpoint {
    /// All endpoints, in order, for metrics with an initial value of zero.
    pub const ALL: [Self; 8] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Generate,
        Self::Tokens,
        Self::ChatTokens,
    ];

    /// The endpoint at a path, with or without `/v1`; none if this crate reads no prompts of its requests.
    ///
    /// A query (`?…`) and one slash at the end do not count.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        match path {
            "/generate" => return Some(Self::Generate),
            "/inference/v1/generate" => return Some(Self::Tokens),
            _ => {}
        }
        match path.strip_prefix("/v1").unwrap_or(path) {
            "/chat/completions/tokens" => Some(Self::ChatTokens),
            "/chat/completions" => Some(Self::Chat),
            "/completions" => Some(Self::Completions),
            "/responses" => Some(Self::Responses),
            "/messages" => Some(Self::Messages),
            "/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }

    /// True if engines generate an answer to prompts of this endpoint.
    #[must_use]
    pub const fn generates(self) -> bool {
        !matches!(self, Self::Embeddings)
    }

    /// The endpoint's name in metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Generate => "generate",
            Self::Tokens => "tokens",
            Self::ChatTokens => "chat_tokens",
        }
    }

    /// True if the body contains the prompt itself instead of a chat: fields for chats have no effect.
    pub(crate) const fn has_plain_prompt(self) -> bool {
        matches!(self, Self::Generate | Self::Tokens | Self::ChatTokens)
    }

    /// True if an engine's token count for the request covers one prompt and one answer, and nothing else.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Generate | Self::Tokens | Self::ChatTokens)
    }

    /// True if requests may have `stream_options`, by which a client asks for token counts.
    #[must_use]
    pub const fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Tokens | Self::ChatTokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/v1/chat/completions", Some(Endpoint::Chat)),
            ("/chat/completions/", Some(Endpoint::Chat)),
            ("/v1/completions?a=b", Some(Endpoint::Completions)),
            ("/v1/responses", Some(Endpoint::Responses)),
            ("/v1/messages", Some(Endpoint::Messages)),
            ("/v1/embeddings", Some(Endpoint::Embeddings)),
            ("/generate/", Some(Endpoint::Generate)),
            ("/v1/generate", None),
            ("/inference/v1/generate", Some(Endpoint::Tokens)),
            ("/v1/chat/completions/tokens", Some(Endpoint::ChatTokens)),
            ("/v1/models", None),
            ("/v1/responses/abc", None),
            ("", None),
        ] {
            assert_eq!(Endpoint::of_path(path), expected, "{path}");
        }
    }
}
