//! Best way for a candidate to serve a request: the parts of the prompt that it loads, pulls and computes; and a quick
//! lower bound on the cost of that way.

use crate::candidates::{Candidates, PromptWay};
use crate::depths::Depths;
use crate::request::Request;
use crate::transfers::costs::Kind;
use crate::transfers::pairs::{CLOSED, Peer, Transfers};

/// Weight of a second of computing relative to a second of transfer, as computing keeps the engine from other prompts.
const COMPUTED: f64 = 1.2;
/// Largest number of sources (workers to pull from) considered for a prompt: those with the most blocks.
const MOST_SOURCES: usize = 3;

/// Worker from which others may pull the leading blocks of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    worker: u32,
    group: u32,
    /// Number of the prompt's leading blocks that can be pulled from the worker.
    blocks: u32,
    /// Number of tokens that the worker is sending to other workers now.
    outgoing: f64,
}

/// Ways to serve a request at its candidates, by loading, pulling and computing parts of the prompt. Each way is
/// computed when needed, as most candidates are ruled out by a lower bound.
#[derive(Debug)]
pub struct Ways<'t> {
    transfers: &'t Transfers,
    tells: bool,
    /// Largest number of the prompt's blocks that a cache can provide.
    usable: u32,
    /// Number of tokens in a block.
    size: f64,
    now: f64,
    /// Number of leading blocks that can be pulled from the source worker with the most of them. `least`: number for
    /// the source worker with the fewest.
    most: u32,
    least: u32,
    /// Group of workers (which pull from each other) to which all sources belong; None if they belong to several
    /// groups.
    group: Option<u32>,
}

/// Bounds on the ways to serve a request at a candidate by loading, pulling and computing blocks. They are computed
/// without reading the data about each pair of the candidate and a worker from which it could pull. Unless
/// [`LeastTransfer::is_way`] is set, the candidate may also compute all blocks that it does not hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeastTransfer {
    /// Number of leading blocks of the prompt that the candidate has on its device when the request starts.
    pub(crate) device: u32,
    /// Upper bound of the number of leading blocks of the prompt that are not computed.
    pub(crate) reached: u32,
    /// Lower bound of the seconds that loads and pulls of blocks take, if there are any.
    pub(crate) seconds: f64,
    /// Lower bound of the number of blocks that are pulled, if any blocks are loaded or pulled.
    pub(crate) pulled: u32,
    /// True if the other fields are the exact values of one way to get the prompt's blocks, rather than bounds over all
    /// ways.
    pub(crate) is_way: bool,
}

/// Ways for a worker to get a prompt's blocks without pulling from another worker.
#[derive(Debug, Clone, Copy)]
struct OwnWay {
    /// Best way for the worker to get the prompt's blocks without pulling from another worker.
    best: PromptWay,
    /// Way for the worker to get the prompt's blocks by loading all that it can load.
    all: PromptWay,
    /// Cost of the best way without pulling ([`OwnWay::best`]), in weighted seconds: a second of computing counts as
    /// [`COMPUTED`] seconds of a load or a wait.
    least: f64,
    usable: u32,
    /// Time in which the worker computes a block, in seconds, multiplied by [`COMPUTED`], the weight of computing
    /// relative to loading. `queue`: seconds until the engine would start the request.
    block: f64,
    queue: f64,
}

impl OwnWay {
    /// Cost of a way to get a prompt's blocks, in seconds, with computing weighted by [`COMPUTED`]: the larger of
    /// `seconds` (of loads and pulls) and the wait in the engine's queue, and the computation of the blocks from index
    /// `reached` on.
    #[inline(always)]
    fn cost(&self, seconds: f64, reached: u32) -> f64 {
        seconds.max(self.queue) + f64::from(self.usable - reached) * self.block
    }
}

impl Transfers {
    /// Ways for the candidates to get a prompt's blocks (by loading, pulling, computing); None if nothing can be loaded
    /// or pulled.
    pub(crate) fn ways(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        is_trusted: impl Fn(u32) -> bool,
        now: f64,
    ) -> Option<Ways<'_>> {
        self.look(now);
        self.sources.clear();
        if request.tells && self.has_pulls() {
            self.find_sources(depths, is_trusted, now);
        }
        if self.sources.is_empty() && !depths.is_tiered() {
            return None;
        }
        let usable = request.usable_blocks();
        let blocks = |source: Option<&Source>| source.map_or(0, |source| source.blocks.min(usable));
        let group = self.sources.first().map(|source| source.group);
        Some(Ways {
            transfers: self,
            tells: request.tells,
            usable,
            size: f64::from(request.block_size),
            now,
            most: blocks(self.sources.first()),
            least: blocks(self.sources.last()),
            group: group.filter(|group| self.sources.iter().all(|source| source.group == *group)),
        })
    }

    fn find_sources(&mut self, depths: &Depths, is_trusted: impl Fn(u32) -> bool, now: f64) {
        let mut sources = std::mem::take(&mut self.sources);
        // Those with most blocks come first; of equals, those with less to send.
        let is_before = |a: &Source, b: &Source| (a.blocks, b.outgoing) > (b.blocks, a.outgoing);
        for (worker, &blocks) in depths.pullable().iter().enumerate() {
            let is_full = sources.len() == MOST_SOURCES;
            if blocks == 0 || is_full && sources.last().is_some_and(|last| last.blocks > blocks) {
                continue;
            }
            let Some(peer) = self.peers.get(worker) else { break };
            let worker = worker as u32;
            let new = Source { worker, group: peer.group, blocks, outgoing: peer.outgoing };
            let place = sources.iter().position(|it| is_before(&new, it)).unwrap_or(sources.len());
            if place < MOST_SOURCES && self.is_source(peer, now) && is_trusted(worker) {
                sources.truncate(MOST_SOURCES - 1);
                sources.insert(place, new);
            }
        }
        self.sources = sources;
    }
}

impl Ways<'_> {
    /// Bounds on the ways in which a candidate can get the prompt's blocks: by loading, pulling and computing.
    #[inline(always)]
    pub(crate) fn least(&self, all: &Candidates, row: usize) -> LeastTransfer {
        let own = self.own(all, row);
        let PromptWay { device, reached, seconds, .. } = own.best;
        let sure = |way: &PromptWay| LeastTransfer {
            device,
            reached: way.reached,
            seconds: way.seconds,
            pulled: 0,
            is_way: true,
        };
        let group = self.transfers.consumers.get(all.worker[row] as usize).filter(|_| self.tells);
        let Some(consumer) = group.filter(|consumer| consumer.group != 0) else { return sure(&own.all) };
        let loaded = own.all.reached;
        if self.most <= loaded || self.group.is_some_and(|group| group != consumer.group) {
            return sure(&own.best);
        }
        let costs = &self.transfers.costs;
        let pulled = self.least.saturating_sub(loaded);
        let setup = if self.now - consumer.brought > CLOSED { costs.first() } else { 0.0 };
        let with = own.all.seconds + costs.least_pull().seconds(f64::from(pulled) * self.size) + setup;
        if own.cost(with, self.most) >= own.least {
            return sure(&own.best);
        }
        if reached > device {
            LeastTransfer { device, reached: self.most, seconds: seconds.min(with), pulled: 0, is_way: false }
        } else {
            LeastTransfer { device, reached: self.most, seconds: with, pulled, is_way: false }
        }
    }

    /// Best way for a candidate to get the prompt's blocks: by loading, pulling and computing.
    #[must_use]
    pub fn of(&self, all: &Candidates, row: usize) -> PromptWay {
        let own = self.own(all, row);
        let (worker, transfers) = (all.worker[row], self.transfers);
        let peer = transfers.peers.get(worker as usize).filter(|peer| self.tells && peer.group != 0);
        // A worker that cannot be told how much to load loads all that it can.
        let Some(peer) = peer else { return own.all };
        let OwnWay { mut best, all: way, mut least, usable, .. } = own;
        if peer.may_pull(self.now) {
            for source in &transfers.sources {
                let reached = source.blocks.min(usable);
                // The others have no more.
                if reached <= way.loaded {
                    break;
                }
                let is_dearer = own.cost(way.seconds, reached) >= least;
                if is_dearer || source.worker == worker || source.group != peer.group {
                    continue;
                }
                let tokens = f64::from(reached - way.loaded) * self.size;
                let Some(seconds) = transfers.pull_seconds(worker, peer, source, tokens, self.now) else { continue };
                let its = own.cost(way.seconds + seconds, reached);
                if its < least {
                    (best, least) = (way, its);
                    (best.reached, best.source, best.seconds) = (reached, Some(source.worker), way.seconds + seconds);
                }
            }
        }
        best.is_limited = best.loaded < way.loaded;
        best
    }

    #[inline(always)]
    fn own(&self, all: &Candidates, row: usize) -> OwnWay {
        let Self { transfers, usable, size, .. } = *self;
        let device = all.predicted_blocks[row].min(usable);
        let token = 1.0 / all.prefill_rate[row];
        let mut way = PromptWay::computed(device);
        let (block, queue) = (size * token * COMPUTED, all.queued_tokens[row] * token);
        let mut own = OwnWay { best: way, all: way, least: 0.0, usable, block, queue };
        own.least = own.cost(0.0, device);
        if all.any_blocks[row].min(usable) <= device {
            return own;
        }
        let worker = all.worker[row];
        let host = all.host_blocks[row].clamp(device, usable);
        let any = all.any_blocks[row].clamp(host, usable);
        if host > device {
            way.seconds = transfers.costs.of_worker(Kind::Host, worker).seconds(f64::from(host - device) * size);
            (way.host, way.loaded, way.reached) = (host, host, host);
            let its = own.cost(way.seconds, host);
            if its < own.least {
                (own.best, own.least) = (way, its);
            }
        }
        if any > host {
            way.seconds += transfers.costs.of_worker(Kind::Far, worker).seconds(f64::from(any - host) * size);
            (way.loaded, way.reached) = (any, any);
            let its = own.cost(way.seconds, any);
            if its < own.least {
                (own.best, own.least) = (way, its);
            }
        }
        own.all = way;
        own
    }
}

impl Transfers {
    /// Seconds to pull `tokens` tokens from a source; None if the pair of workers may not pull.
    #[inline]
    fn pull_seconds(&self, worker: u32, peer: &Peer, source: &Source, tokens: f64, now: f64) -> Option<f64> {
        let pair = self.pair(worker, peer, source.worker);
        let (line, is_first) = match pair {
            Some(pair) if pair.is_out(now) => return None,
            Some(pair) => (self.costs.of_pair(pair.line()), pair.is_first(now)),
            None if peer.pairs.len() >= self.guards.most_sources
                && peer.pairs.iter().filter(|pair| pair.is_open(now)).count() >= self.guards.most_sources =>
            {
                return None;
            }
            None => (self.costs.of_fleet(Kind::Pull), true),
        };
        let setup = if is_first { self.costs.first() } else { 0.0 };
        Some(line.seconds(tokens) + line.token * source.outgoing + setup)
    }
}
