//! Reader of a JSON answer that is not streamed.
//!
//! Only the content shows that an answer is an error. If the first JSON name of an answer occurs in errors as well as
//! in other answers, the answer is buffered until it is complete, up to the maximum size of an error.

use bytes::{Bytes, BytesMut};

use super::failure::{Failure, may_be_aborted, may_be_error, status_of};
use super::opening::MOST_HELD;
use super::stop::Reason;
use super::usage::{MetaScan, Scan};
use super::{AnswerFacts, AnswerFormat, Dialect};

/// Reader of a JSON answer that is not streamed, which buffers the answer while the answer may be an error.
#[derive(Debug)]
pub(crate) struct WholeAnswer {
    format: AnswerFormat,
    scan: Scan,
    meta: MetaScan,
    reason: Reason,
    held: HeldBack,
    failure: Option<Failure>,
    /// True if a byte of the answer other than white space has arrived.
    has_begun: bool,
}

/// Buffer of the beginning of an answer that may be an error.
#[derive(Debug)]
enum HeldBack {
    /// One received piece of the answer, buffered without a copy.
    Piece(Bytes),
    /// Several received pieces of the answer, copied into one buffer.
    Pieces(BytesMut),
    /// No buffer: all bytes of the answer are forwarded as they arrive.
    Over,
}

impl WholeAnswer {
    pub(super) fn new(format: AnswerFormat) -> Self {
        let held = if format.finds_errors { HeldBack::Piece(Bytes::new()) } else { HeldBack::Over };
        let (scan, meta, reason) = Default::default();
        Self { format, scan, meta, reason, held, failure: None, has_begun: false }
    }

    pub(super) fn pass(&mut self, data: Bytes) -> Bytes {
        match self.format.dialect {
            Dialect::Generate => self.meta.pass(&data),
            _ => self.scan.pass(&data),
        }
        self.reason.pass(&data, self.format.dialect);
        self.has_begun = self.has_begun || !data.trim_ascii().is_empty();
        match &mut self.held {
            HeldBack::Over => return data,
            HeldBack::Piece(first) if first.is_empty() => *first = data,
            HeldBack::Piece(first) => {
                let mut pieces = BytesMut::from(&**first);
                pieces.extend_from_slice(&data);
                self.held = HeldBack::Pieces(pieces);
            }
            HeldBack::Pieces(pieces) => pieces.extend_from_slice(&data),
        }
        if self.held_back().len() > MOST_HELD || first_name(self.held_back()) == FirstName::OfAnswer {
            return self.release();
        }
        Bytes::new()
    }

    /// Returns the buffered bytes at the end of a complete answer, after searching them for an error.
    pub(super) fn rest(&mut self) -> Bytes {
        let whole = self.release();
        let is_worth_reading = match first_name(&whole) {
            FirstName::OfError => true,
            FirstName::OfBoth => may_be_error(&whole) || may_be_aborted(&whole),
            FirstName::OfAnswer | FirstName::Unknown => false,
        };
        if is_worth_reading {
            self.failure = status_of(&whole).map(|status| Failure { status, is_first: true });
        }
        whole
    }

    /// Returns the buffered bytes without searching them for an error; later bytes are forwarded as they arrive.
    pub(super) fn release(&mut self) -> Bytes {
        match std::mem::replace(&mut self.held, HeldBack::Over) {
            HeldBack::Piece(piece) => piece,
            HeldBack::Pieces(pieces) => pieces.freeze(),
            HeldBack::Over => Bytes::new(),
        }
    }

    pub(super) fn held_back(&self) -> &[u8] {
        match &self.held {
            HeldBack::Piece(piece) => piece,
            HeldBack::Pieces(pieces) => pieces,
            HeldBack::Over => &[],
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    pub(super) fn seen(&self) -> AnswerFacts {
        let told = match self.format.dialect {
            Dialect::Generate => self.meta.told,
            _ => self.scan.told,
        };
        let (usage, stop, failure) = (told.usage(), self.reason.stop(), self.failure);
        AnswerFacts { usage, stop, failure, finished: true, over: true, events: 0 }
    }
}

/// Evidence that an answer's first JSON name gives on whether the answer is an error.
#[derive(Debug, PartialEq, Eq)]
enum FirstName {
    /// First JSON name of the answer that has not arrived completely.
    Unknown,
    /// First JSON name that occurs only in successful answers.
    OfAnswer,
    /// First JSON name that occurs in successful answers as well as in errors.
    OfBoth,
    /// First JSON name that occurs in errors, and in small successful answers.
    OfError,
}

fn first_name(text: &[u8]) -> FirstName {
    let Some(rest) = text.trim_ascii_start().strip_prefix(b"{") else {
        return if text.trim_ascii().is_empty() { FirstName::Unknown } else { FirstName::OfAnswer };
    };
    let rest = rest.trim_ascii_start();
    let Some(name) = rest.strip_prefix(b"\"") else {
        return if rest.is_empty() { FirstName::Unknown } else { FirstName::OfAnswer };
    };
    match memchr::memchr(b'"', name).map(|end| &name[..end]) {
        None => FirstName::Unknown,
        Some(b"error" | b"message" | b"code" | b"type" | b"status" | b"param" | b"detail") => FirstName::OfError,
        Some(b"choices" | b"data" | b"results" | b"embeddings" | b"tokens" | b"output" | b"content") => {
            FirstName::OfAnswer
        }
        Some(_) => FirstName::OfBoth,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dialect, Observer};
    use super::*;

    fn observer() -> Observer {
        let format = AnswerFormat { dialect: Dialect::Chat, hides_usage: false, finds_errors: true };
        Observer::of(Some(b"application/json"), format)
    }

    #[test]
    fn errors_are_found_however_they_are_cut() {
        for (text, status) in [
            (r#"{"error":{"message":"x","code":500}}"#, Some(500)),
            ("  \n\n {\"error\" : {\"message\":\"x\",\"code\": 400 } }\n", Some(400)),
            (r#"{"object":"error","message":"x","code":503}"#, Some(503)),
            (r#"{"message":"x","type":"InternalServerError","code":500}"#, Some(500)),
            (r#"{"success":false,"error":{"message":"x"}}"#, Some(500)),
            (r#"{"id":"resp_1","object":"response","status":"failed","error":{"code":"server_error"}}"#, Some(500)),
            (r#"{"id":"x","choices":[{"message":{"content":""},"finish_reason":"abort"}]}"#, Some(500)),
            (r#"{"error":null,"id":"x","choices":[{"message":{"content":"\"error\""}}]}"#, None),
            (r#"{"id":"x","choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}"#, None),
            (r#"{"data":[{"embedding":[0.1,0.2]}]}"#, None),
            ("[0.5, 1]", None),
        ] {
            for cut in 1..=text.len() {
                let mut observer = observer();
                let mut out = Vec::new();
                for piece in text.as_bytes().chunks(cut) {
                    out.extend_from_slice(&observer.pass(Bytes::copy_from_slice(piece)));
                }
                out.extend_from_slice(&observer.rest());
                assert_eq!(out, text.as_bytes());
                assert_eq!(observer.failure().map(|failure| failure.status), status, "{text} in pieces of {cut}");
            }
        }
    }

    #[test]
    fn what_begins_as_no_error_does_passes_at_once() {
        for text in [r#"{"choices": [{"#, r#" {"data": [{"#, "[", "12", "\"text"] {
            assert_eq!(observer().pass(Bytes::from_static(text.as_bytes())), text);
        }
        let mut long = observer();
        assert!(long.pass(Bytes::from_static(br#"{"id":"x","text":""#)).is_empty());
        assert!(!long.pass(Bytes::from(vec![b'x'; MOST_HELD])).is_empty(), "what is held is bounded");
    }
}
