//! The content type of a body, from its header.
//!
//! A web page can make a browser send other types to any server without permission, but not these two.

use hyper::header::{CONTENT_TYPE, HeaderMap};

/// The content type of a body, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// JSON, or a format based on it.
    Json,
    /// The numbers of a query as bytes.
    Bytes,
}

impl Content {
    /// The content type in the headers; none if it is another one.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let is_suffixed = |kind: &str| kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case("+json");
        if kind.eq_ignore_ascii_case("application/json") || (kind.starts_with("application/") && is_suffixed(kind)) {
            return Some(Self::Json);
        }
        kind.eq_ignore_ascii_case("application/octet-stream").then_some(Self::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types() {
        let of =
            |kind: &'static str| Content::of(&HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().expect("a header"))]));
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            assert_eq!(of(json), Some(Content::Json), "{json}");
        }
        for bytes in ["application/octet-stream", "Application/Octet-Stream ; type=u32"] {
            assert_eq!(of(bytes), Some(Content::Bytes), "{bytes}");
        }
        for other in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "text/json",
            "application/jsonp",
            "application/octet-streams",
            "+json",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(Content::of(&HeaderMap::new()), None);
    }
}
