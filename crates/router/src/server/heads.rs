//! Heads of requests that say twice how long the body is.
//!
//! hyper goes by the chunks and drops the length, as it may (RFC 9112, 6.3). Whoever sends both has nothing good in mind,
//! or a broken proxy before it: the request is refused.

/// Looks at a head while it comes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    has_length: bool,
    has_coding: bool,
    over: bool,
}

impl Head {
    /// More of it. A line that comes in two pieces is not seen; a request with a coding is the last of its connection
    /// anyway.
    pub(super) fn look(&mut self, bytes: &[u8]) {
        if self.over {
            return;
        }
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            match line.first().map(u8::to_ascii_lowercase) {
                Some(b'\r') => {
                    self.over = true;
                    return;
                }
                Some(b'c') => self.has_length |= is(line, b"content-length:"),
                Some(b't') => self.has_coding |= is(line, b"transfer-encoding:"),
                _ => {}
            }
        }
    }

    /// Whether it says both.
    pub(super) fn is_ambiguous(self) -> bool {
        self.has_length && self.has_coding
    }
}

fn is(line: &[u8], name: &[u8]) -> bool {
    line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_seen() {
        let seen = |text: &str| {
            let mut head = Head::default();
            head.look(text.as_bytes());
            head.is_ambiguous()
        };
        assert!(seen("POST / HTTP/1.1\r\nContent-Length: 5\r\nTRANSFER-encoding: chunked\r\n\r\n"));
        assert!(!seen("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\ntransfer-encoding: chunked\r\n"));
        assert!(!seen("POST / HTTP/1.1\r\nx-content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"));
    }
}
