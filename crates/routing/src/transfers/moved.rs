//! One request's transfer: the times that were expected, and the result.

use crate::candidates::{Candidates, PromptWay};
use crate::request::Request;
use crate::transfers::costs::Kind;
use crate::transfers::pairs::Transfers;

/// A pull is late when it has taken this multiple of what was expected, and these seconds more.
const LATE: f64 = 2.0;
const LATE_SECONDS: f64 = 1.0;
/// A transfer that took less than this multiple of the queue before it may have waited for its turn: how long it took
/// cannot be told.
const HIDDEN: f64 = 2.0;
/// Nor can it if the rest of the prompt takes this multiple of it to compute.
const OUTWEIGHED: f64 = 2.0;
/// Seconds that a transfer takes at least.
const SHORTEST: f64 = 1e-4;

/// Result of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullResult {
    /// All that was expected was in the cache.
    Brought,
    /// A part of it.
    Short,
    /// Nothing of it.
    Nothing,
    /// There was no first token long after there should have been one.
    Late,
    /// The request failed, or was given up.
    Failed,
    /// The engine did not say what was in the cache.
    Unknown,
}

impl PullResult {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Brought, Self::Short, Self::Nothing, Self::Late, Self::Failed, Self::Unknown];

    /// The result in a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Brought => "brought",
            Self::Short => "short",
            Self::Nothing => "nothing",
            Self::Late => "late",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// The part of a transfer that comes from one kind of place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    pub(crate) tokens: f64,
    seconds: f64,
}

/// A transfer of a request that is with a worker.
#[derive(Debug, Clone)]
pub(crate) struct MovedTokens {
    worker: u32,
    pub(crate) source: Option<u32>,
    /// Parts, by [`Kind`].
    parts: [Part; 3],
    block_size: u32,
    /// Prompt tokens expected in the cache: without those that are pulled, and with them.
    without: u32,
    with: u32,
    /// Expected seconds of the queue before the request, of the transfer, and of computing the rest of the prompt.
    queue: f64,
    pub(crate) seconds: f64,
    prefill: f64,
    is_late: bool,
    /// True if the answer comes as a whole: its first token is not seen, so it cannot be late.
    comes_whole: bool,
    /// True if its tokens no longer count as being sent by the source.
    has_arrived: bool,
}

impl MovedTokens {
    /// The transfer that a way means for a request at the worker of a row; none if nothing is moved. `queue`: seconds
    /// until all prompts before it there are computed.
    pub(crate) fn of(
        way: &PromptWay,
        request: &Request<'_>,
        all: &Candidates,
        row: usize,
        transfers: &Transfers,
        queue: f64,
    ) -> Option<Self> {
        if way.reached <= way.device {
            return None;
        }
        let worker = all.worker[row];
        let size = request.block_size;
        let tokens = |from: u32, to: u32| f64::from(to - from) * f64::from(size);
        let own = |kind: Kind, tokens: f64| {
            let seconds = if tokens > 0.0 { transfers.costs.of_worker(kind, worker).seconds(tokens) } else { 0.0 };
            Part { tokens, seconds }
        };
        let host = own(Kind::Host, tokens(way.device, way.host));
        let far = own(Kind::Far, tokens(way.host, way.loaded));
        let pull = Part {
            tokens: tokens(way.loaded, way.reached),
            seconds: (way.seconds - host.seconds - far.seconds).max(0.0),
        };
        Some(Self {
            worker,
            source: way.source,
            parts: [host, far, pull],
            block_size: size,
            without: way.loaded * size,
            with: way.reached * size,
            queue,
            seconds: way.seconds,
            prefill: f64::from(request.uncached(way.reached)) / all.prefill_rate[row],
            is_late: false,
            comes_whole: false,
            has_arrived: false,
        })
    }

    /// The part that comes from one kind of place.
    pub(crate) fn part(&self, kind: Kind) -> Part {
        self.parts[kind as usize]
    }

    /// The time from which on it is late, if it is sent now.
    pub(crate) fn due(&self, now: f64) -> f64 {
        now + LATE_SECONDS + LATE * (self.queue.max(self.seconds) + self.prefill)
    }

    /// Takes its tokens out of those that the source is sending: the first token has come, or the request is over.
    pub(crate) fn arrive(&mut self, transfers: &mut Transfers) {
        if let Some(source) = self.source.filter(|_| !self.has_arrived) {
            transfers.arrived(source, self.part(Kind::Pull).tokens);
        }
        self.has_arrived = true;
    }

    /// Notes that the answer comes as a whole.
    pub(crate) fn comes_whole(&mut self) {
        self.comes_whole = true;
    }

    /// Notes that the request should have had its first token long ago.
    pub(crate) fn is_late(&mut self, transfers: &mut Transfers, now: f64) {
        if let Some(source) = self.source.filter(|_| !self.comes_whole) {
            self.is_late = true;
            transfers.is_late(self.worker, source, now);
        }
    }

    /// Learns from the end of its request. `waited`: seconds until its first token, if that is known; `cached`: prompt
    /// tokens that were in the cache, if the engine reported them. Returns the result of a pull.
    pub(crate) fn end(
        &self,
        waited: Option<f64>,
        cached: Option<u32>,
        transfers: &mut Transfers,
        now: f64,
    ) -> Option<PullResult> {
        let had_all = cached.is_some_and(|cached| cached.saturating_add(self.block_size) > self.with);
        let sample = waited.filter(|_| had_all).and_then(|waited| self.sample(waited));
        let Some(source) = self.source else {
            if let Some((kind, tokens, seconds)) = sample {
                transfers.has_loaded(self.worker, kind, (tokens, seconds), now);
            }
            return None;
        };
        let result = match cached {
            None => PullResult::Unknown,
            Some(_) if had_all => PullResult::Brought,
            Some(cached) if cached >= self.without + self.block_size => PullResult::Short,
            Some(_) => PullResult::Nothing,
        };
        let (worker, late) = (self.worker, self.is_late);
        match result {
            PullResult::Brought => {
                let pulled =
                    sample.filter(|(kind, ..)| *kind == Kind::Pull).map(|(_, tokens, seconds)| (tokens, seconds));
                transfers.has_brought(worker, source, pulled, now);
            }
            PullResult::Short => transfers.is_short(worker, source, now),
            PullResult::Nothing => transfers.retire(worker, source, now),
            _ => {}
        }
        Some(if late { PullResult::Late } else { result })
    }

    /// The result of a pull whose request failed.
    pub(crate) fn failed(&self) -> Option<PullResult> {
        self.source.map(|_| if self.is_late { PullResult::Late } else { PullResult::Failed })
    }

    /// Kind, tokens and seconds of the longest part, if they can be told from the first token, which came after `waited`
    /// seconds.
    fn sample(&self, waited: f64) -> Option<(Kind, f64, f64)> {
        let took = waited - self.prefill;
        if took < HIDDEN * self.queue || self.prefill > OUTWEIGHED * took.max(self.seconds) {
            return None;
        }
        let by_seconds = |a: &Kind, b: &Kind| self.part(*a).seconds.total_cmp(&self.part(*b).seconds);
        let kind = Kind::ALL.into_iter().filter(|kind| self.part(*kind).tokens > 0.0).max_by(by_seconds)?;
        let Part { tokens, seconds } = self.part(kind);
        Some((kind, tokens, (took - (self.seconds - seconds)).max(SHORTEST)))
    }
}
