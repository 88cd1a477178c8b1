//! The kinds of request that a body can be for.

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
}

impl Endpoint {
    /// All endpoints, in order, for metrics that begin at zero.
    pub const ALL: [Self; 5] = [Self::Chat, Self::Completions, Self::Responses, Self::Messages, Self::Embeddings];

    /// Returns the endpoint of a path, be it with `/v1` or without; none if requests there have no prompts that this
    /// crate reads.
    ///
    /// A query (`?…`) and one slash at the end do not count.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        match path.strip_prefix("/v1").unwrap_or(path) {
            "/chat/completions" => Some(Self::Chat),
            "/completions" => Some(Self::Completions),
            "/responses" => Some(Self::Responses),
            "/messages" => Some(Self::Messages),
            "/embeddings" => Some(Self::Embeddings),
            _ => None,
        }
    }

    /// True if engines generate an answer to a prompt sent there.
    #[must_use]
    pub const fn generates(self) -> bool {
        !matches!(self, Self::Embeddings)
    }

    /// A word for it, for metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
        }
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
            ("/v1/models", None),
            ("/v1/responses/abc", None),
            ("", None),
        ] {
            assert_eq!(Endpoint::of_path(path), expected, "{path}");
        }
    }
}
