//! Pairs of workers that may pull from each other.
//!
//! A request that waits for a source that does not answer gets its first token up to half a minute late, and after that
//! its engine may wait as long for other sources. So a worker is a source only if it was heard of a moment ago; a pull that
//! has not brought anything long after it should have takes out its pair, its source and its consumer, before anybody
//! knows why; and a pair that brought less than the index said twice is out. All of them come back after a while, and at
//! once if the pull turns out to have brought what was expected.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;
use crate::transfers::costs::{CostedTransfer, Costs, Kind, LearntLine, Line, Priors, known};
use crate::transfers::plan::Source;

/// Number of pulls in a row that bring only a part of what was expected, after which the pair is excluded.
const SHORT: u32 = 2;
/// Seconds between two looks at what is old.
const LOOKS: f64 = 60.0;
/// Seconds after which an engine may have closed an idle connection to another.
pub(super) const CLOSED: f64 = 300.0;

/// Limits on pulls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guards {
    /// Age in seconds that a source's last sign of life may have.
    pub(crate) heard_within: f64,
    /// Seconds for which a pair is excluded.
    pub(crate) out: f64,
    /// Largest number of sources of one consumer.
    pub(crate) most_sources: usize,
}

/// A consumer and one of its sources. Small, since a decision reads those of all candidates.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) source: u32,
    short: u32,
    /// The line that was learnt, as of a moment ago.
    line: Option<Line>,
    /// Time at which it last brought something.
    brought: f64,
    used: f64,
    out_until: f64,
    learnt: Box<LearntLine>,
}

/// One worker, as a consumer and as a source.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Workers pull from others of the same group only; 0: from none.
    pub(super) group: u32,
    /// Time at which it was last heard of.
    heard: f64,
    /// Tokens on their way out of it.
    pub(super) outgoing: f64,
    /// Neither a source nor a consumer until then.
    source_out: f64,
    consumer_out: f64,
    pub(super) pairs: Vec<Pair>,
}

/// The part of a worker's state as a consumer that a bound needs, of all workers in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Consumer {
    pub(super) group: u32,
    /// Time at which any of its sources last brought something.
    pub(super) brought: f64,
}

impl Default for Consumer {
    fn default() -> Self {
        Self { group: 0, brought: f64::NEG_INFINITY }
    }
}

/// The costs of transfers, and the pairs that may pull.
#[derive(Debug)]
pub(crate) struct Transfers {
    pub(super) costs: Costs,
    pub(super) peers: Vec<Peer>,
    /// By number of the worker, as `peers`.
    pub(super) consumers: Vec<Consumer>,
    /// Place of the pair with each consumer among the consumer's pairs, by source and consumer: a search of these would
    /// be most of a decision.
    places: Vec<Vec<u8>>,
    /// Number of workers that have a group.
    grouped: usize,
    /// Time of the next look at what is old.
    looks_at: f64,
    /// Pulls that are on their way: when each is late, and its request.
    due: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) guards: Guards,
    /// Sources of the last prompt, kept for their memory.
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

    /// True if any worker may pull from another.
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

    /// Sets a worker's group; 0 is none. One that gets a group counts as heard of.
    pub(crate) fn set_group(&mut self, worker: u32, group: u32, now: f64) {
        let peer = self.peer(worker);
        let before = std::mem::replace(&mut peer.group, group);
        if before == 0 {
            peer.heard = now;
        }
        self.consumers[worker as usize].group = group;
        self.grouped = self.grouped + usize::from(group != 0) - usize::from(before != 0);
    }

    /// Notes a sign of life that a worker gave at `now`.
    #[inline]
    pub(crate) fn heard(&mut self, worker: u32, now: f64) {
        if self.grouped > 0
            && let Some(peer) = self.peers.get_mut(worker as usize)
        {
            peer.heard = peer.heard.max(now);
        }
    }

    /// Forgets a worker that has left.
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

    /// Forgets what is old, once in a while.
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

    /// Returns a consumer's pair with a source.
    #[inline]
    pub(super) fn pair<'p>(&self, worker: u32, peer: &'p Peer, source: u32) -> Option<&'p Pair> {
        let place = self.places.get(source as usize)?.get(worker as usize)?;
        peer.pairs.get(*place as usize)
    }

    /// True if others may pull from a worker.
    pub(super) fn is_source(&self, peer: &Peer, now: f64) -> bool {
        peer.group != 0 && now - peer.heard <= self.guards.heard_within && now >= peer.source_out
    }

    /// A pull of `tokens` is on its way, and late at `due`.
    pub(crate) fn sent(&mut self, request: u64, worker: u32, source: u32, tokens: f64, due: f64, now: f64) {
        self.due.push(Reverse((Time(due), request)));
        self.peer(source).outgoing += tokens;
        self.peer(worker);
        let Some(Peer { pairs, .. }) = self.peers.get_mut(worker as usize) else { return };
        if let Some(pair) = pairs.iter_mut().find(|pair| pair.source == source) {
            pair.used = now;
        } else {
            // The place of the connection that was closed first, if there are as many as there may be.
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

    /// Takes tokens out of those that a source is sending.
    pub(crate) fn arrived(&mut self, source: u32, tokens: f64) {
        if let Some(peer) = self.peers.get_mut(source as usize) {
            peer.outgoing = (peer.outgoing - tokens).max(0.0);
        }
    }

    /// The next request whose pull is late by now; each is returned once.
    pub(crate) fn late(&mut self, now: f64) -> Option<u64> {
        let &Reverse((time, request)) = self.due.peek()?;
        (time.0 <= now).then(|| {
            self.due.pop();
            request
        })
    }

    /// Notes a pull that is late: excludes its pair, its source for all consumers, and its consumer from all pulls.
    pub(crate) fn is_late(&mut self, worker: u32, source: u32, now: f64) {
        let until = now + self.guards.out;
        self.peer(source).source_out = until;
        self.peer(worker).consumer_out = until;
        self.retire(worker, source, now);
    }

    /// Excludes a pair, and forgets its costs: a pull was late or brought nothing, or two in a row brought only a part.
    pub(crate) fn retire(&mut self, worker: u32, source: u32, now: f64) {
        let until = now + self.guards.out;
        if let Some(pair) = self.peer(worker).pairs.iter_mut().find(|pair| pair.source == source) {
            pair.out_until = until;
            pair.short = 0;
            pair.learnt.forget();
            pair.line = None;
        }
    }

    /// Notes a pull that brought only a part of what was expected.
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

    /// Notes a pull that brought all that was expected. `sample`: its tokens and seconds, if those can be told.
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

    /// Learns from a load of a worker from a tier of its own. `sample`: tokens and seconds.
    pub(crate) fn has_loaded(&mut self, worker: u32, kind: Kind, sample: (f64, f64), now: f64) {
        self.costs.learn_load(kind, worker, sample, now);
    }

    /// All costs that workers and pairs have learnt; those of the fleet as a whole are left out.
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

/// Notes the place of a pair among its consumer's.
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
    /// True unless its last pulls say that it had better not.
    #[inline]
    pub(super) fn may_pull(&self, now: f64) -> bool {
        now >= self.consumer_out
    }
}

impl Pair {
    /// Returns the line that was learnt of it, if its samples are enough.
    #[inline]
    pub(super) fn line(&self) -> Option<Line> {
        self.line
    }

    /// True if its next pull has to open a connection first.
    pub(super) fn is_first(&self, now: f64) -> bool {
        now - self.brought > CLOSED
    }

    /// True if it is excluded.
    pub(super) fn is_out(&self, now: f64) -> bool {
        now < self.out_until
    }

    /// True if its connection may still be open, and so counts among its consumer's.
    pub(super) fn is_open(&self, now: f64) -> bool {
        now - self.used <= CLOSED
    }
}
