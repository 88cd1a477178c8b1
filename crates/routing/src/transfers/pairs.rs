//! Pairs of workers that may pull blocks from each other: a consumer, which pulls, and a source.
//!
//! If a source does not answer, the request gets its first token up to half a minute late, and after that the
//! consumer's engine may wait as long for other sources. Therefore a worker is a source only if it gave a sign of life
//! recently. A pull that is much too late excludes its pair, its source and its consumer, whatever the cause; a pair is
//! also excluded if two pulls in a row brought less than the index showed. All are included again after a while, and at
//! once if the late pull turns out to have brought all that was expected.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;
use crate::transfers::costs::{CostedTransfer, Costs, Kind, LearntLine, Line, Priors, known};
use crate::transfers::plan::Source;

/// Number of consecutive pulls with only a part of the expected blocks after which a pair of workers is excluded from
/// pulls.
const SHORT: u32 = 2;
/// Seconds between two removals of outdated data about transfers (loads and pulls of blocks).
const LOOKS: f64 = 60.0;
/// Seconds without use after which an engine may have closed its connection to another engine.
pub(super) const CLOSED: f64 = 300.0;

/// Limits on pulls of blocks between workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guards {
    /// Largest age of a source's last sign of life, in seconds, at which other workers may pull blocks from the source.
    pub(crate) heard_within: f64,
    /// Seconds for which a pair of workers is excluded from pulls of blocks after a failed pull.
    pub(crate) out: f64,
    /// Largest number of other workers (sources) from which one worker pulls blocks.
    pub(crate) most_sources: usize,
}

/// Pair of a consumer and one of its sources. The type is small, since a decision reads the pairs of all candidates.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) source: u32,
    short: u32,
    /// Measured cost of pulls by the pair of workers, recomputed from time to time; None without enough samples.
    line: Option<Line>,
    /// Time at which a pull by the pair of workers last brought blocks, in seconds.
    brought: f64,
    used: f64,
    out_until: f64,
    learnt: Box<LearntLine>,
}

/// State of one worker, both as a consumer (it pulls blocks) and as a source (others pull from it).
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Number of the worker's group, within which workers pull from each other; 0 for none.
    pub(super) group: u32,
    /// Time of the worker's last sign of life, in seconds.
    heard: f64,
    /// Number of tokens that other workers are pulling from the worker now.
    pub(super) outgoing: f64,
    /// Time until which the worker is excluded as a source of pulls. `consumer_out`: time until which it is excluded as
    /// a consumer; both in seconds.
    source_out: f64,
    consumer_out: f64,
    pub(super) pairs: Vec<Pair>,
}

/// Part of a consumer's state that is needed to compute a lower bound of its costs; separate for fast access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Consumer {
    pub(super) group: u32,
    /// Time at which a pull by this worker, from any source, last brought blocks, in seconds.
    pub(super) brought: f64,
}

impl Default for Consumer {
    fn default() -> Self {
        Self { group: 0, brought: f64::NEG_INFINITY }
    }
}

/// Costs of transfers (loads and pulls of blocks), and the pairs of workers that may pull from each other.
#[derive(Debug)]
pub(crate) struct Transfers {
    pub(super) costs: Costs,
    pub(super) peers: Vec<Peer>,
    /// State of each worker as a consumer, which pulls blocks, indexed by the worker's number.
    pub(super) consumers: Vec<Consumer>,
    /// Index of each pair of workers in its consumer's list of pairs, by source and consumer; a search in these lists
    /// would take most of a decision's time.
    places: Vec<Vec<u8>>,
    /// Number of workers that belong to a group, within which workers pull from each other.
    grouped: usize,
    /// Time of the next removal of outdated data about transfers, in seconds.
    looks_at: f64,
    /// Queue of the pulls in flight: the time after which each is late, and its request.
    due: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) guards: Guards,
    /// Reusable buffer for the workers from which a prompt's blocks might be pulled.
    pub(super) sources: Vec<Source>,
}

impl Transfers {
    pub(crate) fn new(priors: Priors, guards: Guards) -> Self {
        Self {
            costs: Costs::new(priors),
            peers: Vec::new(),
            consumers: Vec::new(),
            places: Vec::new(),
            grouped: 0,
            looks_at: f64::NEG_INFINITY,
            due: BinaryHeap::new(),
            guards,
            sources: Vec::new(),
        }
    }

    /// True if any worker may pull blocks from another worker.
    pub(crate) fn has_pulls(&self) -> bool {
        self.grouped > 1
    }

    fn peer(&mut self, worker: u32) -> &mut Peer {
        let at = worker as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, Peer::default);
            self.consumers.resize(at + 1, Consumer::default());
        }
        &mut self.peers[at]
    }

    /// Sets a worker's group; 0 for none. A worker that joins its first group counts as having given a sign of life.
    pub(crate) fn set_group(&mut self, worker: u32, group: u32, now: f64) {
        let peer = self.peer(worker);
        let before = std::mem::replace(&mut peer.group, group);
        if before == 0 {
            peer.heard = now;
        }
        self.consumers[worker as usize].group = group;
        self.grouped = self.grouped + usize::from(group != 0) - usize::from(before != 0);
    }

    /// Records a sign of life that a worker gave at the time `now`.
    #[inline]
    pub(crate) fn heard(&mut self, worker: u32, now: f64) {
        if self.grouped > 0
            && let Some(peer) = self.peers.get_mut(worker as usize)
        {
            peer.heard = peer.heard.max(now);
        }
    }

    /// Removes all data about the transfers of a worker that has left.
    pub(crate) fn left(&mut self, worker: u32) {
        self.costs.left(worker);
        self.set_group(worker, 0, f64::NEG_INFINITY);
        *self.peer(worker) = Peer::default();
        self.consumers[worker as usize] = Consumer::default();
        self.places.clear();
        for (consumer, peer) in self.peers.iter_mut().enumerate() {
            peer.pairs.retain(|pair| pair.source != worker);
            for (place, pair) in peer.pairs.iter().enumerate() {
                set_place(&mut self.places, pair.source, consumer as u32, place);
            }
        }
    }

    /// Removes outdated data about transfers, if the time for this has come.
    #[inline]
    pub(super) fn look(&mut self, now: f64) {
        if now >= self.looks_at {
            self.looks_at = now + LOOKS;
            self.costs.look(now);
            for pair in self.peers.iter_mut().flat_map(|peer| &mut peer.pairs) {
                pair.line = known(&pair.learnt, now);
                self.costs.note_pull(pair.line);
            }
        }
    }

    /// Data of a pair of workers, a consumer and a source of pulls; None if the consumer has not pulled from the
    /// source.
    #[inline]
    pub(super) fn pair<'p>(&self, worker: u32, peer: &'p Peer, source: u32) -> Option<&'p Pair> {
        let place = self.places.get(source as usize)?.get(worker as usize)?;
        peer.pairs.get(*place as usize)
    }

    /// True if other workers may now pull blocks from this worker.
    pub(super) fn is_source(&self, peer: &Peer, now: f64) -> bool {
        peer.group != 0 && now - peer.heard <= self.guards.heard_within && now >= peer.source_out
    }

    /// Records a pull of `tokens` tokens for a request that was sent; the pull is late after the time `due`.
    pub(crate) fn sent(&mut self, request: u64, worker: u32, source: u32, tokens: f64, due: f64, now: f64) {
        self.due.push(Reverse((Time(due), request)));
        self.peer(source).outgoing += tokens;
        self.peer(worker);
        let Some(Peer { pairs, .. }) = self.peers.get_mut(worker as usize) else { return };
        if let Some(pair) = pairs.iter_mut().find(|pair| pair.source == source) {
            pair.used = now;
        } else {
            // If the list is full, the new pair replaces the one whose connection was closed first.
            let is_full = pairs.len() >= self.guards.most_sources;
            let closed = pairs.iter().enumerate().filter(|(_, pair)| is_full && !pair.is_open(now));
            let oldest = closed.min_by(|(_, a), (_, b)| a.used.total_cmp(&b.used)).map(|(place, _)| place);
            let (brought, out_until) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
            let new = Pair { source, short: 0, line: None, brought, used: now, out_until, learnt: Box::default() };
            if let Some(place) = oldest {
                let old = std::mem::replace(&mut pairs[place], new);
                set_place(&mut self.places, old.source, worker, usize::MAX);
                set_place(&mut self.places, source, worker, place);
            } else {
                set_place(&mut self.places, source, worker, pairs.len());
                pairs.push(new);
            }
        }
    }

    /// Subtracts `tokens` from the number of tokens that a source is sending to other workers.
    pub(crate) fn arrived(&mut self, source: u32, tokens: f64) {
        if let Some(peer) = self.peers.get_mut(source as usize) {
            peer.outgoing = (peer.outgoing - tokens).max(0.0);
        }
    }

    /// Removes and returns the next request whose pull is late at the time `now`; None if there is none.
    pub(crate) fn late(&mut self, now: f64) -> Option<u64> {
        let &Reverse((time, request)) = self.due.peek()?;
        (time.0 <= now).then(|| {
            self.due.pop();
            request
        })
    }

    /// Excludes from further pulls, after a late one: the pair of workers, its source for all consumers, and its
    /// consumer.
    pub(crate) fn is_late(&mut self, worker: u32, source: u32, now: f64) {
        let until = now + self.guards.out;
        self.peer(source).source_out = until;
        self.peer(worker).consumer_out = until;
        self.retire(worker, source, now);
    }

    /// Excludes a pair of workers from pulls and removes its samples, because a pull was late or brought nothing, or
    /// two pulls in a row brought only a part of the expected blocks.
    pub(crate) fn retire(&mut self, worker: u32, source: u32, now: f64) {
        let until = now + self.guards.out;
        if let Some(pair) = self.peer(worker).pairs.iter_mut().find(|pair| pair.source == source) {
            pair.out_until = until;
            pair.short = 0;
            pair.learnt.forget();
            pair.line = None;
        }
    }

    /// Records a pull by a pair of workers that brought only a part of the expected blocks.
    pub(crate) fn is_short(&mut self, worker: u32, source: u32, now: f64) {
        let Some(pair) = self.peer(worker).pairs.iter_mut().find(|pair| pair.source == source) else { return };
        pair.brought = now;
        pair.short += 1;
        let is_short_again = pair.short >= SHORT;
        self.consumers[worker as usize].brought = now;
        if is_short_again {
            self.retire(worker, source, now);
        }
    }

    /// Records a pull by a pair of workers that brought all expected blocks. `sample`: its tokens and seconds, if
    /// known.
    pub(crate) fn has_brought(&mut self, worker: u32, source: u32, sample: Option<(f64, f64)>, now: f64) {
        self.peer(source).source_out = f64::NEG_INFINITY;
        let Self { costs, peers, consumers, .. } = self;
        let Some(peer) = peers.get_mut(worker as usize) else { return };
        peer.consumer_out = f64::NEG_INFINITY;
        let Some(pair) = peer.pairs.iter_mut().find(|pair| pair.source == source) else { return };
        pair.short = 0;
        pair.out_until = f64::NEG_INFINITY;
        let is_first = pair.is_first(now);
        pair.brought = now;
        consumers[worker as usize].brought = now;
        let Some((tokens, seconds)) = sample else { return };
        if is_first {
            costs.learn_first(seconds - costs.of_pair(pair.line).seconds(tokens));
        } else {
            costs.learn_pull(&mut pair.learnt, (tokens, seconds), now);
            pair.line = known(&pair.learnt, now);
            costs.note_pull(pair.line);
        }
    }

    /// Updates the cost of loads by a worker from one of its own tiers. `sample`: tokens and seconds.
    pub(crate) fn has_loaded(&mut self, worker: u32, kind: Kind, sample: (f64, f64), now: f64) {
        self.costs.learn_load(kind, worker, sample, now);
    }

    /// Measured costs of workers' loads and of pulls between pairs of workers, without those of the fleet as a whole.
    pub(crate) fn shown(&self, now: f64) -> Vec<CostedTransfer> {
        let pairs = self.peers.iter().enumerate().flat_map(|(worker, peer)| {
            peer.pairs.iter().map(move |pair| CostedTransfer {
                kind: Kind::Pull,
                worker: worker as u32,
                source: Some(pair.source),
                line: self.costs.of_pair(pair.line),
                samples: pair.learnt.samples(),
                out: (pair.out_until.max(peer.consumer_out) - now).max(0.0),
            })
        });
        self.costs.shown().chain(pairs).collect()
    }
}

/// Sets the index of a pair of workers in its consumer's list of pairs.
fn set_place(places: &mut Vec<Vec<u8>>, source: u32, consumer: u32, place: usize) {
    let (source, consumer) = (source as usize, consumer as usize);
    if places.len() <= source {
        places.resize_with(source + 1, Vec::new);
    }
    if places[source].len() <= consumer {
        places[source].resize(consumer + 1, u8::MAX);
    }
    places[source][consumer] = u8::try_from(place).unwrap_or(u8::MAX);
}

impl Peer {
    /// True if the worker is not excluded as a consumer, so that it may pull blocks from others.
    #[inline]
    pub(super) fn may_pull(&self, now: f64) -> bool {
        now >= self.consumer_out
    }
}

impl Pair {
    /// Measured cost of pulls of blocks by the pair of workers; None without enough samples.
    #[inline]
    pub(super) fn line(&self) -> Option<Line> {
        self.line
    }

    /// True if the next pull by the pair of workers must first open a connection.
    pub(super) fn is_first(&self, now: f64) -> bool {
        now - self.brought > CLOSED
    }

    /// True if the pair of workers is excluded from pulls of blocks.
    pub(super) fn is_out(&self, now: f64) -> bool {
        now < self.out_until
    }

    /// True if the connection of the pair of workers may still be open, so that it counts among its consumer's
    /// connections.
    pub(super) fn is_open(&self, now: f64) -> bool {
        now - self.used <= CLOSED
    }
}
