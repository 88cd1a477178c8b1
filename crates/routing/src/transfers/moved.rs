//! Transfer of blocks for one request: the expected times, and the result.

use crate::candidates::{Candidates, PromptWay};
use crate::request::Request;
use crate::transfers::costs::Kind;
use crate::transfers::pairs::Transfers;

/// Factor in the time after which a pull of blocks is late: `LATE` times the expected time, plus `LATE_SECONDS`.
const LATE: f64 = 2.0;
const LATE_SECONDS: f64 = 1.0;
/// Smallest ratio of the time before the first token, without prefill, to the time in the queue, for which the duration
/// of a transfer (load or pull of blocks) is inferred. With a smaller ratio, the transfer may have ended while the
/// request was queued.
const HIDDEN: f64 = 2.0;
/// Factor by which the prefill of the rest of the prompt may exceed the transfer's time. Beyond this factor, the
/// duration of the transfer (load or pull of blocks) cannot be inferred.
const OUTWEIGHED: f64 = 2.0;
/// Lower limit of the duration of a transfer (load or pull of blocks) that is inferred from a first token's time, in
/// seconds.
const SHORTEST: f64 = 1e-4;

/// Result of pulling blocks from another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullResult {
    /// All tokens expected from the pull were in the consumer's cache (the consumer is the worker that pulls).
    Brought,
    /// Only a part of the tokens expected from the pull was in the consumer's cache.
    Short,
    /// None of the tokens expected from the pull was in the consumer's cache.
    Nothing,
    /// The first token of the request with the pull came much later than expected, or not at all.
    Late,
    /// The request with the pull failed, or was abandoned.
    Failed,
    /// The result is unknown, as the engine did not report the number of cached tokens.
    Unknown,
}

impl PullResult {
    /// All results of pulls.
    pub const ALL: [Self; 6] = [Self::Brought, Self::Short, Self::Nothing, Self::Late, Self::Failed, Self::Unknown];

    /// Name of the result of a pull, as one word.
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

/// Part of a request's transfer (load or pull of blocks) from one kind of source: number of tokens, and expected
/// seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    pub(crate) tokens: f64,
    seconds: f64,
}

/// Transfer (loads and pulls of blocks) for one request in flight: expected times and numbers of tokens.
#[derive(Debug, Clone)]
pub(crate) struct MovedTokens {
    worker: u32,
    pub(crate) source: Option<u32>,
    /// Parts of the request's transfer (load or pull of blocks), indexed by the [`Kind`] of source.
    parts: [Part; 3],
    block_size: u32,
    /// Number of prompt tokens expected in the cache without the pulled ones; `with`: including the pulled ones.
    without: u32,
    with: u32,
    /// Expected seconds that the request waits in the engine's queue. `seconds`: expected seconds of its transfer
    /// (loads and pulls of blocks); `prefill`: expected seconds to compute the rest of the prompt.
    queue: f64,
    pub(crate) seconds: f64,
    prefill: f64,
    is_late: bool,
    /// True if the answer of the request arrives all at once. Its first token is not seen then, so a pull of blocks for
    /// the request never counts as late.
    comes_whole: bool,
    /// True if the pulled tokens no longer count among the tokens that the source is sending.
    has_arrived: bool,
}

impl MovedTokens {
    /// Loads and pulls of blocks for a request at a candidate, from the chosen way; None if nothing is loaded or
    /// pulled. `queue`: seconds until all prompts before the request are computed.
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

    /// Part of the request's transfer (load or pull of blocks) from one kind of source.
    pub(crate) fn part(&self, kind: Kind) -> Part {
        self.parts[kind as usize]
    }

    /// Time, in seconds, after which the transfer (load or pull of blocks) is late if the request is sent now.
    pub(crate) fn due(&self, now: f64) -> f64 {
        now + LATE_SECONDS + LATE * (self.queue.max(self.seconds) + self.prefill)
    }

    /// Subtracts the pulled tokens from the count of tokens that the source is sending, because the first token has
    /// arrived or the request has ended.
    pub(crate) fn arrive(&mut self, transfers: &mut Transfers) {
        if let Some(source) = self.source.filter(|_| !self.has_arrived) {
            transfers.arrived(source, self.part(Kind::Pull).tokens);
        }
        self.has_arrived = true;
    }

    /// Records that the answer of the request will arrive all at once, without a visible first token.
    pub(crate) fn comes_whole(&mut self) {
        self.comes_whole = true;
    }

    /// Records that the first token of a request with a pull of blocks is late.
    pub(crate) fn is_late(&mut self, transfers: &mut Transfers, now: f64) {
        if let Some(source) = self.source.filter(|_| !self.comes_whole) {
            self.is_late = true;
            transfers.is_late(self.worker, source, now);
        }
    }

    /// Updates the costs of transfers at the end of the request. `waited`: seconds until its first token, if known;
    /// `cached`: number of prompt tokens that were in the cache, if the engine reported it. Returns the result of a
    /// pull; None if nothing was pulled.
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

    /// Result of the pull of blocks of a request that failed; None if nothing was pulled.
    pub(crate) fn failed(&self) -> Option<PullResult> {
        self.source.map(|_| if self.is_late { PullResult::Late } else { PullResult::Failed })
    }

    /// Sample of a transfer's cost: kind, tokens and seconds of the transfer's longest part, inferred from the time
    /// `waited` of the first token; None if they cannot be inferred.
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
