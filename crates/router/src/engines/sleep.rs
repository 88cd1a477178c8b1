//! Detection of sleeping engines: by `GET /is_sleeping`, which vLLM has in its development mode, else by
//! `vllm:engine_sleep_state` of its metrics. An engine that says neither counts as awake.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use crate::engines::json_fields::{self, pick};

/// The path at which vLLM tells whether it sleeps.
pub(crate) const SLEEP_PATH: &str = "/is_sleeping";

const UNKNOWN: u8 = 0;
const AWAKE: u8 = 1;
const ASLEEP: u8 = 2;

/// An engine's statements on whether it sleeps.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    by_route: AtomicU8,
    by_metrics: AtomicU8,
}

impl Sleep {
    /// True if the engine states that it sleeps.
    pub(crate) fn is_asleep(&self) -> bool {
        match self.by_route.load(Relaxed) {
            UNKNOWN => self.by_metrics.load(Relaxed) == ASLEEP,
            said => said == ASLEEP,
        }
    }

    /// The route or metric by which the engine states that it sleeps.
    pub(crate) fn source(&self) -> &'static str {
        if self.by_route.load(Relaxed) == ASLEEP { "GET /is_sleeping" } else { "vllm:engine_sleep_state" }
    }

    /// Notes what the engine said when it was asked; none if that says nothing. True if it is awake by that.
    pub(crate) fn note_route(&self, said: Option<bool>) -> bool {
        self.note(&self.by_route, said)
    }

    /// Notes what the engine's metrics say; none if they do not. True if it is awake by that.
    pub(crate) fn note_metrics(&self, said: Option<bool>) -> bool {
        self.note(&self.by_metrics, said)
    }

    /// Forgets what the engine said: who comes back from the dead is awake.
    pub(crate) fn forget(&self) {
        self.by_route.store(UNKNOWN, Relaxed);
        self.by_metrics.store(UNKNOWN, Relaxed);
    }

    fn note(&self, place: &AtomicU8, said: Option<bool>) -> bool {
        let was_asleep = self.is_asleep();
        let word = match said {
            None => UNKNOWN,
            Some(false) => AWAKE,
            Some(true) => ASLEEP,
        };
        place.store(word, Relaxed);
        was_asleep && !self.is_asleep()
    }
}

/// Reads an answer of [`SLEEP_PATH`]. None: it does not say.
pub(crate) fn read(status: u16, body: &[u8]) -> Option<bool> {
    if status != 200 {
        return None;
    }
    let [said] = pick(body, ["is_sleeping"])?;
    json_fields::read(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_counts_for_more_than_the_metrics() {
        let sleep = Sleep::default();
        assert!(!sleep.is_asleep() && !sleep.note_metrics(Some(true)) && sleep.is_asleep());
        assert_eq!(sleep.source(), "vllm:engine_sleep_state");
        assert!(sleep.note_route(Some(false)) && !sleep.is_asleep());
        assert!(!sleep.note_route(None) && sleep.is_asleep(), "one that does not say it any more");
        assert!(!sleep.note_route(Some(true)) && !sleep.note_metrics(Some(false)) && sleep.is_asleep());
        assert_eq!(sleep.source(), "GET /is_sleeping");
        sleep.forget();
        assert!(!sleep.is_asleep());
    }

    #[test]
    fn only_a_plain_word_counts() {
        assert_eq!(read(200, br#"{"is_sleeping": true}"#), Some(true));
        assert_eq!(read(200, br#"{"is_sleeping":false}"#), Some(false));
        for (status, body) in [
            (401, r#"{"is_sleeping": true}"#),
            (404, r#"{"detail": "Not Found"}"#),
            (500, ""),
            (200, "<html></html>"),
            (200, r#"{"is_sleeping": "true"}"#),
            (200, "true"),
        ] {
            assert_eq!(read(status, body.as_bytes()), None, "{status} {body}");
        }
    }
}
