//! The weights of the policy `kvatlas` that can be given as options.

use crate::error::Error;
use crate::options::Options;

/// Weights of the terms of the cost, which is in seconds. Each can be given as an option of the same name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Weight of the seconds that it took to compute what the new blocks push out.
    pub evict: f64,
    /// Weight of a second by which requests to come will wait longer for room in the cache.
    pub price: f64,
    /// Weight of a second by which a new session, with all that it is expected to send, and the sessions that live at an
    /// engine will delay each other. 0: the first request of a session is like any other.
    pub settle: f64,
    /// Seconds within which an engine must begin with a request, or the request waits in the router. 0: none waits.
    pub hold: f64,
    /// Longest wait for the best engine, as a multiple of what the best of those that begin soon would cost more. 0: none
    /// waits for one engine.
    pub patience: f64,
    /// Difference between two costs, in seconds, at which the dearer engine is chosen e times less often. 0: the cheapest
    /// is always chosen.
    pub temperature: f64,
}

/// Names of former weights, with the text that says what replaced each.
const LEARNT: [(&str, &str); 2] = [
    ("host", "what loads from host memory cost is learnt, and begins with the settings host_floor and host_token"),
    ("far", "what loads from disks and pools cost is learnt, and begins with the settings far_floor and far_token"),
];

impl Default for Weights {
    fn default() -> Self {
        Self { evict: 0.3, price: 2.0, settle: 0.5, hold: 0.5, patience: 4.0, temperature: 0.0 }
    }
}

impl Weights {
    /// Takes the options that are weights.
    ///
    /// # Errors
    /// Code `bad_option` for one that is not a number or out of range.
    pub(crate) fn take(options: &mut Options) -> Result<Self, Error> {
        for (name, settings) in LEARNT {
            options.refuse(name, settings)?;
        }
        let its = Self::default();
        let mut weight = |name, default| options.number(name, default, 0.0, 1e6);
        Ok(Self {
            evict: weight("evict", its.evict)?,
            price: weight("price", its.price)?,
            settle: weight("settle", its.settle)?,
            hold: weight("hold", its.hold)?,
            patience: weight("patience", its.patience)?,
            temperature: weight("temperature", its.temperature)?,
        })
    }
}
