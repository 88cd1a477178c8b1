//! Forwarding of requests to engines, with retries, and of the answers to clients.
//!
//! ```text
//! forward (reads the body) ──▶ job (asks `placing`, retries) ──▶ exchange ──▶ engine
//!                              ├─▶ request_head (head for the engine)           │
//!                              └─▶ answer_body (on its way; `flight` counts) ◀──┘
//! ```

mod adapters;
mod answer_body;
mod attempts;
mod body_fields;
mod comments;
mod exchange;
mod flight;
mod forward;
mod handover;
mod job;
mod respond;
mod tokens;
pub(crate) mod transfer_field;
mod warm_up;

use std::pin::Pin;
use std::sync::Arc;

use kvatlas_http::Gate;

use crate::answers::stored::AnswerEngines;
use crate::config::Config;
use crate::counts::Counts;
use crate::engines::fleet::Fleet;
use crate::placing::Places;
use crate::requests::facts::Objectives;
use crate::requests::read_body::BodyReader;
use crate::requests::sessions::Sessions;

pub(crate) use self::flight::{Arrival, Flight};
pub(crate) use self::forward::BodyReading;
pub(crate) use self::handover::PREPARED;
pub(crate) use self::job::pause_wanted;
pub(crate) use self::tokens::{RESULTS, Tokens};

/// Forwarder of requests to engines, with the state that all requests share.
pub(crate) struct Forwarder {
    pub(crate) config: Arc<Config>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) reader: Arc<BodyReader>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) places: Arc<Places>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) sessions: Sessions,
    /// State for sending completions to engines as token ids.
    pub(crate) tokens: Tokens,
    /// Table of the priorities of requests, by the objective (a priority class of the cluster) that a request names in
    /// a header.
    pub(crate) objectives: Objectives,
    /// Engines that store responses, files and other items for clients, by the items' ids.
    pub(crate) answer_engines: AnswerEngines,
}

/// Makes a future in a box. `make`: makes the future.
///
/// The box is allocated before the future is made, so that the compiler can write the future's initial state directly
/// into the box. `Box::pin` copies the whole future, which includes kilobytes of space for later states.
#[inline(always)]
pub(crate) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}
