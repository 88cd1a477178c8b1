//! Sessions: the worker of each one, and the load that a new session is expected to bring to its worker.
//!
//! The requests of a session go to the worker that has their common prompt cached, so the choice for the first request
//! decides for all later ones. The expected load is learnt from earlier sessions: how many more requests they send,
//! after which pauses, and how many seconds of prefill each needs.

use std::collections::VecDeque;

use hashbrown::HashMap;

/// Largest number of sessions that are remembered.
const MOST: usize = 1 << 15;
/// Upper limit of the shortest class of pauses between a session's requests, in seconds; the limit of each further
/// class is twice as large.
const SHORTEST: f64 = 1.0;
/// Number of classes in the histogram of pauses between a session's requests.
const CLASSES: usize = 13;
/// Quantile (share) of the pauses between a session's requests: after a pause that exceeds this share of all pauses,
/// the session counts as over.
const NEARLY_ALL: f64 = 0.95;
/// Seconds without a request after which a session counts as over, while few pauses between sessions' requests are
/// known; `LEAST`: lower limit of this time, in seconds, once they are known.
const UNKNOWN: f64 = 60.0;
const LEAST: f64 = 10.0;
/// Factor by which the counts of earlier pauses between a session's requests shrink with each new pause.
const KEPT: f64 = 1.0 - 1.0 / 512.0;
/// Number of pauses between sessions' requests that must be known before their distribution is used.
const FEW: f64 = 8.0;

/// Worker to which a session's requests go, and the time of the session's last request.
#[derive(Debug, Clone, Copy)]
struct Place {
    worker: u32,
    last: f64,
}

/// Current worker of each session, and statistics of all sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    places: HashMap<u64, Place>,
    /// Time and session of each request, oldest first; the last entry of a session has the time of its last request.
    touched: VecDeque<(f64, u64)>,
    /// Number of sessions at each worker, indexed by the worker's number.
    living: Vec<u32>,
    /// Decaying counts: requests that were not the first of their session (`later`), and sessions that are over
    /// (`over`).
    later: f64,
    over: f64,
    pauses: [f64; CLASSES],
    /// Decaying sums over requests that were not the first of their session: pauses before them (`between`) and
    /// prefill, both in seconds.
    between: f64,
    prefill: f64,
    lasts: f64,
}

impl Sessions {
    /// True if a session has sent requests before and is not over.
    pub(super) fn knows(&self, session: u64) -> bool {
        self.places.contains_key(&session)
    }

    /// Records that a session's request is sent to a worker, where its prompt takes `prefill` seconds to compute.
    pub(super) fn sent(&mut self, session: u64, worker: u32, prefill: f64, now: f64) {
        self.expire(now);
        self.touched.push_back((now, session));
        let at = worker as usize;
        if self.living.len() <= at {
            self.living.resize(at + 1, 0);
        }
        self.living[at] += 1;
        if let Some(before) = self.places.insert(session, Place { worker, last: now }) {
            self.living[before.worker as usize] -= 1;
            self.goes_on(now - before.last, prefill);
        }
        while self.places.len() > MOST || self.touched.len() > 2 * MOST {
            self.end_first();
        }
    }

    fn goes_on(&mut self, pause: f64, prefill: f64) {
        for sum in self.pauses.iter_mut().chain([&mut self.later, &mut self.over, &mut self.between, &mut self.prefill])
        {
            *sum *= KEPT;
        }
        self.later += 1.0;
        self.between += pause;
        self.prefill += prefill;
        let class = (pause.max(SHORTEST) / SHORTEST).log2().ceil() as usize;
        self.pauses[class.min(CLASSES - 1)] += 1.0;
        self.lasts = self.longest_pause();
    }

    /// Seconds without a request after which a session counts as over.
    fn longest_pause(&self) -> f64 {
        let all: f64 = self.pauses.iter().sum();
        if all < FEW {
            return UNKNOWN;
        }
        let (mut sum, mut until) = (0.0, SHORTEST);
        for count in &self.pauses {
            sum += count;
            if sum >= NEARLY_ALL * all {
                break;
            }
            until *= 2.0;
        }
        until.max(LEAST)
    }

    fn expire(&mut self, now: f64) {
        let lasts = if self.lasts > 0.0 { self.lasts } else { UNKNOWN };
        while self.touched.front().is_some_and(|(at, _)| at + lasts < now) {
            self.end_first();
        }
    }

    fn end_first(&mut self) {
        let Some((at, session)) = self.touched.pop_front() else { return };
        if let Some(place) = self.places.get(&session).copied().filter(|place| place.last <= at) {
            self.places.remove(&session);
            self.living[place.worker as usize] -= 1;
            self.over += 1.0;
        }
    }

    /// Number of sessions at a worker that are not over.
    #[inline]
    pub(super) fn living(&self, worker: u32) -> f64 {
        f64::from(self.living.get(worker as usize).copied().unwrap_or_default())
    }

    /// Number of requests that a new session is expected to send after its first one, from the sessions so far.
    pub(super) fn to_come(&self) -> f64 {
        self.later / (self.over + 0.5 * self.places.len() as f64 + 1.0)
    }

    /// Mean prefill time of requests that are not the first of their session, in seconds.
    pub(super) fn prefill(&self) -> f64 {
        self.prefill / self.later.max(1.0)
    }

    /// Fraction of the time for which a session has a request in flight, if each request takes `residence` seconds.
    pub(super) fn duty(&self, residence: f64) -> f64 {
        (residence * self.later / self.between.max(1e-3)).min(1.0)
    }

    /// Forgets a worker that has left the fleet, and its sessions.
    pub(super) fn left(&mut self, worker: u32) {
        if let Some(living) = self.living.get_mut(worker as usize) {
            *living = 0;
            self.places.retain(|_, place| place.worker != worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_new_session_brings_is_learnt_from_those_before() {
        let mut sessions = Sessions::default();
        assert_eq!((sessions.to_come(), sessions.duty(5.0)), (0.0, 0.0));
        // Fifty sessions, one after another, of ten requests each, 20 s apart, at two workers in turns.
        for session in 0..50_u64 {
            for request in 0..10 {
                let now = session as f64 * 200.0 + f64::from(request) * 20.0;
                assert_eq!(sessions.knows(session), request > 0);
                sessions.sent(session, (session % 2) as u32, 0.5, now);
            }
        }
        let all = sessions.to_come();
        assert!(all > 7.0 && all < 9.5, "{all}");
        assert!((sessions.duty(5.0) - 0.25).abs() < 1e-9 && (sessions.prefill() - 0.5).abs() < 1e-9);
        // Those over are forgotten: a pause of more than 32 s there was none.
        assert_eq!((sessions.living(0), sessions.living(1), sessions.living(7)), (0.0, 1.0, 0.0));
        sessions.sent(1_000, 0, 0.0, 1e6);
        assert_eq!((sessions.living(0), sessions.living(1), sessions.places.len()), (1.0, 0.0, 1));
    }

    #[test]
    fn sessions_that_move_live_where_they_were_last() {
        let mut sessions = Sessions::default();
        for (session, worker) in [(1, 0), (2, 0), (1, 3)] {
            sessions.sent(session, worker, 0.0, 0.0);
        }
        assert_eq!((sessions.living(0), sessions.living(3)), (1.0, 1.0));
        sessions.left(3);
        assert_eq!((sessions.living(3), sessions.knows(1), sessions.knows(2)), (0.0, false, true));
        sessions.sent(1, 0, 0.0, 1.0);
        assert_eq!(sessions.living(0), 2.0);
    }

    #[test]
    fn no_more_sessions_are_kept_than_that() {
        let mut sessions = Sessions::default();
        for session in 0..3 * MOST as u64 {
            sessions.sent(session, 0, 0.0, 0.0);
        }
        assert_eq!((sessions.places.len(), sessions.living(0)), (MOST, MOST as f64));
        for _ in 0..3 * MOST {
            sessions.sent(3 * MOST as u64, 0, 0.0, 0.0);
        }
        assert!(sessions.touched.len() <= 2 * MOST, "{}", sessions.touched.len());
    }
}
