//! Patterns of paths, and sets of methods.

use hyper::{Method, Uri};

/// A path, with at most one parameter: `{id}` is one segment, `{name*}` one or more.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) text: &'static str,
    /// Bytes before the parameter, and behind it.
    around: Option<(usize, usize)>,
    pub(super) is_rest: bool,
}

impl Pattern {
    pub(super) const fn new(text: &'static str) -> Self {
        let bytes = text.as_bytes();
        let (mut at, mut before, mut is_rest, mut around) = (0, 0, false, None);
        while at < bytes.len() {
            match bytes[at] {
                b'{' => before = at,
                b'*' => is_rest = true,
                b'}' => around = Some((before, bytes.len() - at - 1)),
                _ => {}
            }
            at += 1;
        }
        Self { text, around, is_rest }
    }

    /// True if the pattern is one path, without a parameter.
    pub(super) const fn is_literal(&self) -> bool {
        self.around.is_none()
    }

    pub(super) fn is(&self, path: &str) -> bool {
        self.parameter(path).is_some()
    }

    /// Returns the parameter in a matching path; empty if the pattern has none.
    pub(super) fn parameter<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((before, behind)) = self.around else { return (path == self.text).then_some("") };
        let (head, tail) = (&self.text[..before], &self.text[self.text.len() - behind..]);
        let found = path.strip_prefix(head)?.strip_suffix(tail)?;
        (!found.is_empty() && (self.is_rest || !found.contains('/'))).then_some(found)
    }
}

/// Returns a path without its trailing slash.
pub(crate) fn bare(path: &str) -> &str {
    path.strip_suffix('/').filter(|bare| !bare.is_empty()).unwrap_or(path)
}

/// A set of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Methods(pub(super) u8);

/// The methods that a route can have.
pub(super) const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

pub(super) const STREAM: Methods = Methods(1);
pub(super) const GET: Methods = Methods(1 | 2);
pub(super) const POST: Methods = Methods(4);
pub(super) const DELETE: Methods = Methods(32);
pub(super) const ANY: Methods = Methods(63);

impl Methods {
    pub(crate) fn has(self, method: &Method) -> bool {
        METHODS.iter().position(|other| other == method).is_some_and(|at| self.0 & (1 << at) != 0)
    }

    /// Lists the methods as in a header `Allow`.
    pub(crate) fn list(self) -> String {
        let names = METHODS.iter().filter(|method| self.has(method)).map(Method::as_str);
        names.collect::<Vec<_>>().join(", ")
    }
}

/// Removes the trailing slash of a request's path, which engines would answer with a redirection.
pub(crate) fn take_off_slash(uri: &mut Uri) {
    let bare = bare(uri.path());
    if bare.len() < uri.path().len() {
        let path = uri.query().map_or_else(|| bare.to_owned(), |query| format!("{bare}?{query}"));
        // They are parts of those that it came with.
        let mut parts = std::mem::take(uri).into_parts();
        parts.path_and_query = path.parse().ok();
        *uri = Uri::from_parts(parts).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_at_the_end() {
        for (given, wanted) in [
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("/v1/chat/completions/?a=/", "/v1/chat/completions?a=/"),
            ("/v1/rerank?a=1", "/v1/rerank?a=1"),
            ("http://host/v1/rerank/?a=1", "http://host/v1/rerank?a=1"),
            ("/", "/"),
        ] {
            let mut uri: Uri = given.parse().expect("a URI");
            take_off_slash(&mut uri);
            assert_eq!(uri.to_string(), wanted);
        }
    }
}
