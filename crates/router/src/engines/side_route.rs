//! Routes of an engine for questions about prompts, such as `/tokenize`, and their present usability.
//!
//! Engines need not have these routes: a missing flag disables them, an old version lacks them, a proxy may answer with
//! a page, and each of these may change with a restart. A route that failed is therefore not used for a while, and then
//! tested in the background, independently of requests.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use kvatlas_prompt::{MESSAGES_RENDER_PATH, RESPONSES_RENDER_PATH, TOKENIZE_PATH};
use memchr::memmem;

use crate::clock::millis;

/// Time, in milliseconds, from a route's failure to its next test.
const PAUSE: u64 = 10_000;

/// Number of successive answers without tokens after which a route for tokenizing is no longer used. Fewer of these
/// answers may be chance.
const CHANCES: u64 = 3;

/// Names, in the metrics, of the outcomes of questions about prompts to an engine.
pub(crate) const OUTCOMES: [&str; 5] = ["tokens", "refused", "rejected", "failed", "late"];

/// Outcome of a question about a prompt to an engine, in the order of [`OUTCOMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Tokens,
    /// The engine does not have the route, refuses access, or answers with something other than tokens.
    Refused,
    /// The engine rejects the particular request, which is no evidence against the route.
    Rejected,
    /// The engine failed or is too busy to answer.
    Failed,
    /// The engine did not answer the question in time.
    Late,
}

/// Answer to a caller that wants to use an engine's route for a question about a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The route works, and the caller can use it now.
    Now,
    /// The route failed before and is due for a test, which the caller has to make in the background.
    Trial,
    No,
}

/// Route of an engine for questions about prompts, such as `/tokenize`.
#[derive(Debug)]
pub(crate) struct SideRoute {
    /// Time of the route's next test, in milliseconds of the router's clock; 0 while the route works.
    again_at: AtomicU64,
    /// Number of successive answers of the route without tokens, which may have happened by chance.
    misses: AtomicU64,
    /// Number of successive answers without tokens after which the route is no longer used.
    chances: u64,
    outcomes: [AtomicU64; OUTCOMES.len()],
}

/// All routes of an engine for questions about prompts.
#[derive(Debug)]
pub(crate) struct SideRoutes {
    tokenize: SideRoute,
    messages: SideRoute,
    responses: SideRoute,
}

impl Default for SideRoutes {
    fn default() -> Self {
        // What renders has a second way behind it, so that one slow answer is enough.
        let new = |chances| SideRoute { again_at: 0.into(), misses: 0.into(), chances, outcomes: Default::default() };
        Self { tokenize: new(CHANCES), messages: new(1), responses: new(1) }
    }
}

impl SideRoutes {
    /// Returns the engine's route at the path `path`.
    pub(crate) fn of(&self, path: &str) -> &SideRoute {
        match path {
            MESSAGES_RENDER_PATH => &self.messages,
            RESPONSES_RENDER_PATH => &self.responses,
            _ => &self.tokenize,
        }
    }

    /// Returns all routes, each with its path.
    pub(crate) fn all(&self) -> [(&'static str, &SideRoute); 3] {
        [TOKENIZE_PATH, MESSAGES_RENDER_PATH, RESPONSES_RENDER_PATH].map(|path| (path, self.of(path)))
    }

    /// Resets the state of all these routes to usable, as another engine or version may be running now at the engine's
    /// address.
    pub(crate) fn forget(&self) {
        for (_, route) in self.all() {
            route.again_at.store(0, Relaxed);
            route.misses.store(0, Relaxed);
        }
    }
}

impl SideRoute {
    /// Decides whether the caller may use the route now. When a test of the route is due, only one caller gets
    /// [`Turn::Trial`].
    pub(crate) fn turn(&self) -> Turn {
        let (again_at, now) = (self.again_at.load(Relaxed), millis());
        match again_at {
            0 => Turn::Now,
            _ if again_at > now => Turn::No,
            _ => match self.again_at.compare_exchange(again_at, now + PAUSE, AcqRel, Relaxed) {
                Ok(_) => Turn::Trial,
                Err(_) => Turn::No,
            },
        }
    }

    /// Records the outcome of a question about a prompt at the route. Returns true if the outcome makes the route
    /// unusable.
    pub(crate) fn note(&self, outcome: Outcome) -> bool {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
        let misses = match outcome {
            Outcome::Tokens => {
                if self.misses.load(Relaxed) != 0 || self.again_at.load(Relaxed) != 0 {
                    self.misses.store(0, Relaxed);
                    self.again_at.store(0, Relaxed);
                }
                return false;
            }
            Outcome::Rejected => return false,
            Outcome::Refused => self.chances,
            Outcome::Failed | Outcome::Late => self.misses.fetch_add(1, Relaxed) + 1,
        };
        misses >= self.chances && self.again_at.swap(millis() + PAUSE, AcqRel) == 0
    }

    /// Returns the number of questions at the route for each outcome, with the outcome's name in [`OUTCOMES`].
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        OUTCOMES.into_iter().zip(self.outcomes.each_ref().map(|count| count.load(Relaxed)))
    }
}

impl Outcome {
    /// Returns the outcome for an answer that has no tokens, by the answer's status and body.
    pub(crate) fn without_tokens(status: u16, body: &[u8]) -> Self {
        match status {
            // A model or an adapter that the engine does not have is not a route that it does not have.
            404 if memmem::find(body, b"\"error\"").is_some() && memmem::find(body, b"model").is_some() => {
                Self::Rejected
            }
            400 | 413 | 422 => Self::Rejected,
            408 | 429 | 500 | 502.. => Self::Failed,
            _ => Self::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_refused_is_left_alone_and_tried_by_one() {
        let routes = SideRoutes::default();
        let route = routes.of(MESSAGES_RENDER_PATH);
        assert_eq!(route.turn(), Turn::Now);
        assert!(route.note(Outcome::Refused));
        assert!(!route.note(Outcome::Refused), "that is known");
        assert_eq!((route.turn(), routes.of(RESPONSES_RENDER_PATH).turn()), (Turn::No, Turn::Now));
        route.again_at.store(1, Relaxed);
        assert_eq!((route.turn(), route.turn()), (Turn::Trial, Turn::No));
        route.note(Outcome::Tokens);
        assert_eq!(route.turn(), Turn::Now);
        route.note(Outcome::Late);
        assert_eq!(route.turn(), Turn::No);
        routes.forget();
        assert_eq!(route.turn(), Turn::Now);
    }

    #[test]
    fn what_may_be_chance_counts_in_a_row() {
        let routes = SideRoutes::default();
        let route = routes.of(TOKENIZE_PATH);
        for outcome in [Outcome::Late, Outcome::Failed, Outcome::Tokens, Outcome::Failed, Outcome::Rejected] {
            assert!(!route.note(outcome), "{outcome:?}");
        }
        assert!(!route.note(Outcome::Late) && route.note(Outcome::Late));
    }

    #[test]
    fn answers_without_tokens() {
        for (status, body, outcome) in [
            (403, "{}", Outcome::Refused),
            (401, "", Outcome::Refused),
            (404, r#"{"detail":"Not Found"}"#, Outcome::Refused),
            (404, r#"{"error":{"message":"The model `x` does not exist."}}"#, Outcome::Rejected),
            (405, "", Outcome::Refused),
            (501, "", Outcome::Refused),
            (307, "", Outcome::Refused),
            (200, "<html>", Outcome::Refused),
            (204, "", Outcome::Refused),
            (400, "", Outcome::Rejected),
            (422, "", Outcome::Rejected),
            (429, "", Outcome::Failed),
            (500, "", Outcome::Failed),
            (503, "", Outcome::Failed),
        ] {
            assert_eq!(Outcome::without_tokens(status, body.as_bytes()), outcome, "{status} {body}");
        }
    }
}
