//! [`FlightWatcher`]: what the router learns of an answer that a gateway passes on.

use bytes::Bytes;
use std::time::Instant;

use hyper::StatusCode;
use hyper::header::HeaderValue;
use kvatlas_epp::AnswerWatcher;

use crate::answers::observe::{AnswerFormat, Observer};
use crate::proxy::{Flight, pause_wanted};

/// Notes an answer as if the router passed it on. If it is dropped before the answer's end, the client gave it up.
pub(super) struct FlightWatcher {
    flight: Flight,
    reading: AnswerFormat,
    observer: Observer,
}

impl FlightWatcher {
    pub(super) fn new(flight: Flight, reading: AnswerFormat) -> Self {
        Self { flight, reading, observer: Observer::of(None, reading) }
    }
}

impl AnswerWatcher for FlightWatcher {
    fn head(&mut self, status: u16, headers: &[(String, Bytes)]) {
        let value = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
        self.flight.answered(status);
        let retry_after = value("retry-after").and_then(|value| HeaderValue::from_bytes(value).ok());
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        if let Some(pause) = pause_wanted(status, retry_after.as_ref()) {
            self.flight.engine().health.set_busy(pause);
        }
        let finds_errors = self.reading.finds_errors && status.is_success();
        let kind = value("content-type").filter(|_| value("content-encoding").is_none());
        self.observer = Observer::of(kind, AnswerFormat { finds_errors, ..self.reading });
    }

    fn part(&mut self, part: &Bytes) {
        self.observer.pass(part.clone());
        if self.observer.take_progress() {
            self.flight.note_piece();
        } else {
            self.flight.note_sign_of_life();
        }
        match self.observer.failure() {
            Some(failure) => self.flight.note_error(failure),
            None => self.flight.note_tokens(self.observer.tokens(), Instant::now()),
        }
    }

    fn end(&mut self) {
        self.observer.rest();
        self.flight.note_end(self.observer.seen());
    }
}
