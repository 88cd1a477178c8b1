//! All weights of the policy `kvatlas`, in one place.

use crate::error::Error;
use crate::options::Options;

/// The weights of the cost, which is in seconds. Each can be given as an option of the same name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// A second that this request waits for prompts before it, and for room in the cache.
    pub wait: f64,
    /// A second by which the prompt at the head of a queue is later than expected: what is late tends to be later.
    pub overdue: f64,
    /// A second of its own prefill.
    pub prefill: f64,
    /// Weight of delays to running requests there: for each of them, a second of its own prefill counts so much.
    pub decodes: f64,
    /// Most seconds of prefill that `decodes` counts: a longer one is no reason to go where few run, and find others
    /// like it.
    pub decodes_most: f64,
    /// A second by which it delays a prompt that waits there, because both are computed in the same step.
    pub beside: f64,
    /// Prompt tokens that an engine computes in one step.
    pub chunk: f64,
    /// Weight of what its prefill takes from requests to come: a second counts so much, always.
    pub later: f64,
    /// Amount added to `later` for each prompt that waits, on average over the candidates.
    pub later_waiting: f64,
    /// Most waiting prompts that `later_waiting` counts.
    pub later_most: f64,
    /// Weight of what its new blocks push out: the seconds that it took to compute as many.
    pub evict: f64,
    /// A second of computing again what its new blocks push out though somebody is likely to go on from it in a moment.
    /// 0: nobody waits on account of that.
    pub keep: f64,
    /// 0: that an engine runs only so many requests at once, as learnt, is left out.
    pub limit: f64,
    /// A second by which requests to come will wait longer for room in the cache, because this one is there.
    pub price: f64,
    /// Weight for a prompt of which nobody holds anything: its prefill counts so much more where such a one was placed
    /// last.
    pub cold: f64,
    /// Tokens in the host's memory cost so much of computing them.
    pub host: f64,
    /// Tokens on other tiers cost so much of computing them.
    pub far: f64,
    /// Requests that an engine reports waiting beyond those that we sent it count so much of an average one of ours.
    pub foreign: f64,
    /// Seconds after which what an engine reports does not count any more.
    pub report_age: f64,
    /// Weight of what load does to prefill, as learnt. 0: it takes as long wherever much runs.
    pub load: f64,
    /// A second by which it delays an answer that runs there, or such a one its own, because each step serves one more.
    pub crowding: f64,
    /// A second by which those that wait behind the same prompt on its way make its answer longer. 0: such a prompt is
    /// computed once, however many wait for it.
    pub burst: f64,
    /// A second of prompts that wait in the router for the same worker.
    pub held: f64,
    /// A second by which a new session, with all that it is expected to send, and those that live there will delay each
    /// other. 0: the first request of a session is like any other.
    pub settle: f64,
    /// Requests wait in the router while every candidate, or the best, would begin with them only after so many seconds.
    /// 0: none waits.
    pub hold: f64,
    /// Most seconds that a request waits for the best where another would begin soon, as a multiple of what that one would
    /// cost more. 0: none waits for one.
    pub patience: f64,
    /// Spreads choices: costs that differ by so many seconds are chosen e times less often. 0: always the least.
    pub temperature: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            wait: 1.0,
            overdue: 1.0,
            prefill: 1.0,
            decodes: 0.03,
            decodes_most: 1.0,
            beside: 1.0,
            chunk: 8_192.0,
            later: 0.2,
            later_waiting: 0.1,
            later_most: 6.0,
            evict: 0.3,
            keep: 1.0,
            limit: 1.0,
            price: 2.0,
            cold: 0.1,
            host: 0.15,
            far: 0.4,
            foreign: 0.5,
            report_age: 5.0,
            load: 1.0,
            crowding: 0.03,
            burst: 1.0,
            held: 0.5,
            settle: 0.3,
            hold: 0.5,
            patience: 4.0,
            temperature: 0.0,
        }
    }
}

impl Weights {
    /// Takes the options that are weights.
    ///
    /// # Errors
    /// Code `bad_option` for one that is not a number or out of range.
    pub(crate) fn take(options: &mut Options) -> Result<Self, Error> {
        let its = Self::default();
        let mut weight = |name, default| options.number(name, default, 0.0, 1e6);
        Ok(Self {
            wait: weight("wait", its.wait)?,
            overdue: weight("overdue", its.overdue)?,
            prefill: weight("prefill", its.prefill)?,
            decodes: weight("decodes", its.decodes)?,
            decodes_most: weight("decodes_most", its.decodes_most)?,
            beside: weight("beside", its.beside)?,
            chunk: weight("chunk", its.chunk)?,
            later: weight("later", its.later)?,
            later_waiting: weight("later_waiting", its.later_waiting)?,
            later_most: weight("later_most", its.later_most)?,
            evict: weight("evict", its.evict)?,
            keep: weight("keep", its.keep)?,
            limit: weight("limit", its.limit)?,
            price: weight("price", its.price)?,
            cold: weight("cold", its.cold)?,
            host: weight("host", its.host)?,
            far: weight("far", its.far)?,
            foreign: weight("foreign", its.foreign)?,
            report_age: weight("report_age", its.report_age)?,
            load: weight("load", its.load)?,
            crowding: weight("crowding", its.crowding)?,
            burst: weight("burst", its.burst)?,
            held: weight("held", its.held)?,
            settle: weight("settle", its.settle)?,
            hold: weight("hold", its.hold)?,
            patience: weight("patience", its.patience)?,
            temperature: weight("temperature", its.temperature)?,
        })
    }
}
