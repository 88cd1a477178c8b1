//! Routing policy `sticky-least-loaded`: assigns a new session to the worker with the fewest sessions, where it stays.

use std::collections::HashMap;

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::parts::draw::mix;
use crate::policy::{Choice, Policy};
use crate::request::Request;

/// Largest number of sessions that are remembered.
const SESSIONS: usize = 1 << 16;

/// Routing policy like `sticky_least_loaded` of vllm-router (vllm-project/router#235, autumn 2026). A new session goes
/// to the worker with the fewest sessions, chosen by rendezvous hashing among equals, and stays there until it has sent
/// no request for `idle_secs` seconds.
///
/// Requests without a session go to the worker with the fewest requests, the first one among equals. In vllm-router a
/// client can also end its session (`POST /finish_session`), which this policy does not support.
pub(super) struct StickyLeastLoaded {
    idle: f64,
    /// Worker of each session, and the time of the session's last request in seconds.
    sessions: HashMap<u64, (u32, f64)>,
    /// Number of sessions of each worker.
    counts: HashMap<u32, usize>,
    /// Time of the last check for idle sessions, in seconds.
    looked: f64,
}

impl StickyLeastLoaded {
    pub(super) fn new(options: &mut Options, _seed: u64) -> Result<Self, Error> {
        Ok(Self {
            idle: options.number("idle_secs", 1_800.0, 0.0, 1e9)?,
            sessions: HashMap::new(),
            counts: HashMap::new(),
            looked: 0.0,
        })
    }

    fn expire(&mut self, now: f64) {
        if now - self.looked < self.idle / 16.0 && self.sessions.len() < SESSIONS {
            return;
        }
        self.looked = now;
        let (idle, counts) = (self.idle, &mut self.counts);
        self.sessions.retain(|_, (worker, since)| {
            let stays = now - *since < idle;
            if !stays && let Some(count) = counts.get_mut(worker) {
                *count = count.saturating_sub(1);
            }
            stays
        });
    }
}

impl Policy for StickyLeastLoaded {
    fn name(&self) -> &'static str {
        "sticky-least-loaded"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        self.expire(now);
        let Some(session) = request.session else {
            return Choice::Row((0..candidates.len()).min_by_key(|&row| candidates.requests[row]).unwrap_or(0));
        };
        let home = self.sessions.get(&session).filter(|(_, since)| now - since < self.idle);
        let row = home.and_then(|(worker, _)| candidates.worker.iter().position(|candidate| candidate == worker));
        let new = || {
            (0..candidates.len()).min_by_key(|&row| {
                let worker = candidates.worker[row];
                (self.counts.get(&worker).copied().unwrap_or(0), mix(session ^ mix(u64::from(worker))))
            })
        };
        Choice::Row(row.or_else(new).unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let Some(session) = request.session else { return };
        if self.sessions.len() >= SESSIONS && !self.sessions.contains_key(&session) {
            return;
        }
        let worker = candidates.worker[row];
        let before = self.sessions.insert(session, (worker, now)).map(|(worker, _)| worker);
        if before == Some(worker) {
            return;
        }
        if let Some(count) = before.and_then(|worker| self.counts.get_mut(&worker)) {
            *count = count.saturating_sub(1);
        }
        *self.counts.entry(worker).or_insert(0) += 1;
    }

    fn left(&mut self, worker: u32) {
        self.counts.remove(&worker);
        self.sessions.retain(|_, (its, _)| *its != worker);
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.sessions.len() + self.counts.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{fleet, send};

    #[test]
    fn sessions_spread_evenly_and_stay_until_idle() {
        let mut policy = StickyLeastLoaded::new(&mut Options::from_json(r#"{"idle_secs": 10}"#).unwrap(), 0).unwrap();
        let mut candidates = fleet(3);
        let of = |session| Request { session: Some(session), ..Request::default() };
        let mut homes: Vec<usize> = (0..3).map(|session| send(&mut policy, &of(session), &candidates, 0.0)).collect();
        let first = homes[0];
        candidates.requests[first] = 90;
        assert_eq!(send(&mut policy, &of(0), &candidates, 9.0), first);
        homes.sort_unstable();
        assert_eq!(homes, [0, 1, 2]);
        // The others are idle at 11 s: two new ones take their places.
        let rows = [7, 8].map(|session| send(&mut policy, &of(session), &candidates, 11.0));
        assert!(!rows.contains(&first) && rows[0] != rows[1]);
        candidates.requests = vec![2, 1, 1];
        assert_eq!(policy.choose(&Request::default(), &candidates, 11.0), Choice::Row(1));
    }
}
