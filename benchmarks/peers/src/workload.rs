//! A workload: the requests, and every event the engines emit for them, made once and given to all.
//!
//! Events are kept as ranges of the requests (a few bytes each), because 10,000 engines emit millions of
//! blocks. They are spelled out, block by block, into the caller's buffer just before they are applied and
//! off the clock.

use std::collections::HashMap;

use crate::engines::{Piece, Pool};
use crate::rng::{Rng, mix};
use crate::specs::Spec;
use crate::trace::Trace;

/// An event that one engine announces.
#[derive(Clone, Copy)]
pub struct Event {
    pub engine: u32,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// Blocks `from..to` of a request.
    Store { request: u32, from: u32, to: u32 },
    /// A range of `Workload::pieces`.
    Remove { first: u32, last: u32 },
}

/// One event spelled out. For a removal `contents` is empty.
#[derive(Default, Clone, Debug)]
pub struct PlainEvent {
    pub engine: u32,
    pub store: bool,
    pub parent: Option<u64>,
    pub names: Vec<u64>,
    pub contents: Vec<u64>,
}

struct Request {
    ids: (u32, u32),
    events: (u32, u32),
}

pub struct Workload {
    pub spec: Spec,
    seed: u64,
    ids: Vec<u32>,
    requests: Vec<Request>,
    /// Number of the leading requests that are the trace; the rest repeat it (see [`Workload::build`]).
    pub first_lap: usize,
    events: Vec<Event>,
    pieces: Vec<Piece>,
    /// Removes everything the engines hold after the first lap.
    drain: Vec<Event>,
    /// Blocks held by all engines together after the first lap.
    pub held: u64,
}

impl Workload {
    /// Runs the engines over the trace, `laps` times. From the second lap on an engine's state at the start of a
    /// lap equals that at its end, so the second lap's events can be applied again and again.
    pub fn build(spec: Spec, trace: &Trace, seed: u64, laps: usize) -> Self {
        let mut w = Self {
            spec,
            seed,
            ids: Vec::new(),
            requests: Vec::new(),
            first_lap: trace.requests.len().min(spec.limit),
            events: Vec::new(),
            pieces: Vec::new(),
            drain: Vec::new(),
            held: 0,
        };
        let routes = route(&spec, trace, seed);
        let mut pools: Vec<Pool> = (0..spec.engines).map(|_| Pool::new(spec.capacity, spec.per_id)).collect();
        let mut evicted = Vec::new();
        for lap in 0..laps {
            for (ids, engines) in trace.requests.iter().zip(&routes).take(spec.limit) {
                let (start, number) = (w.ids.len() as u32, w.requests.len() as u32);
                w.ids.extend_from_slice(ids);
                let first_event = w.events.len() as u32;
                for &engine in engines {
                    let got = pools[engine as usize].admit(ids, &mut evicted);
                    if !evicted.is_empty() {
                        let what = w.remember(&mut evicted);
                        w.events.push(Event { engine, what });
                    }
                    if got.end > got.hit {
                        w.events
                            .push(Event { engine, what: What::Store { request: number, from: got.hit, to: got.end } });
                    }
                }
                w.requests
                    .push(Request { ids: (start, w.ids.len() as u32), events: (first_event, w.events.len() as u32) });
            }
            if lap == 0 {
                w.held = pools.iter().map(|p| u64::from(p.used())).sum();
                for (engine, pool) in pools.iter().enumerate() {
                    let all: Vec<Piece> = pool.contents().collect();
                    for chunk in all.chunks(64) {
                        let what = w.remember(&mut chunk.to_vec());
                        w.drain.push(Event { engine: engine as u32, what });
                    }
                }
            }
        }
        w
    }

    fn remember(&mut self, evicted: &mut Vec<Piece>) -> What {
        let first = self.pieces.len() as u32;
        self.pieces.append(evicted);
        What::Remove { first, last: self.pieces.len() as u32 }
    }

    /// Events emitted while request `number` ran.
    pub fn events_of(&self, number: usize) -> &[Event] {
        let (first, last) = self.requests[number].events;
        &self.events[first as usize..last as usize]
    }

    /// Events of all repeats of the trace.
    pub fn events_after_first_lap(&self) -> &[Event] {
        self.requests.get(self.first_lap).map_or(&[], |r| &self.events[r.events.0 as usize..])
    }

    /// Blocks stored and removed in the first lap, by all engines together.
    pub fn blocks_moved(&self) -> (u64, u64) {
        let (mut stored, mut removed) = (0, 0);
        for event in (0..self.first_lap).flat_map(|number| self.events_of(number)) {
            match event.what {
                What::Store { from, to, .. } => stored += u64::from(to - from),
                What::Remove { first, last } => {
                    let pieces = &self.pieces[first as usize..last as usize];
                    removed += pieces.iter().map(|p| u64::from(p.hi - p.lo)).sum::<u64>();
                }
            }
        }
        (stored, removed)
    }

    pub fn drain(&self) -> &[Event] {
        &self.drain
    }

    /// Blocks a request spans, and its trace block ids.
    pub fn ids_of(&self, number: usize) -> &[u32] {
        let (first, last) = self.requests[number].ids;
        &self.ids[first as usize..last as usize]
    }

    /// Spells out the content hashes of a request.
    pub fn query(&self, number: usize, contents: &mut Vec<u64>) {
        contents.clear();
        for &id in self.ids_of(number) {
            contents.extend((0..self.spec.per_id).map(|j| self.content(self.block(id, j))));
        }
    }

    /// Spells out an event.
    pub fn spell(&self, event: &Event, out: &mut PlainEvent) {
        out.engine = event.engine;
        out.names.clear();
        out.contents.clear();
        out.parent = None;
        match event.what {
            What::Store { request, from, to } => {
                out.store = true;
                let ids = self.ids_of(request as usize);
                let per_id = u32::from(self.spec.per_id);
                let block = |position: u32| self.block(ids[(position / per_id) as usize], (position % per_id) as u8);
                out.parent = from.checked_sub(1).map(|before| self.name(event.engine, block(before)));
                out.names.extend((from..to).map(|p| self.name(event.engine, block(p))));
                out.contents.extend((from..to).map(|p| self.content(block(p))));
            }
            What::Remove { first, last } => {
                out.store = false;
                for piece in &self.pieces[first as usize..last as usize] {
                    out.names
                        .extend((piece.lo..piece.hi).rev().map(|j| self.name(event.engine, self.block(piece.id, j))));
                }
            }
        }
    }

    /// Brings `held` (blocks held of each trace block, by engine) up to date with an event.
    pub fn follow(&self, event: &Event, held: &mut [HashMap<u32, u8>]) {
        let held = &mut held[event.engine as usize];
        match event.what {
            What::Store { request, to, .. } => {
                let per_id = u32::from(self.spec.per_id);
                for (i, &id) in self.ids_of(request as usize).iter().enumerate() {
                    let now = to.saturating_sub(i as u32 * per_id).min(per_id) as u8;
                    if now > 0 {
                        held.insert(id, now);
                    }
                }
            }
            What::Remove { first, last } => {
                for piece in &self.pieces[first as usize..last as usize] {
                    if piece.lo == 0 {
                        held.remove(&piece.id);
                    } else {
                        held.insert(piece.id, piece.lo);
                    }
                }
            }
        }
    }

    /// Distinct blocks are numbered: block `j` of a trace block. A number stands for the block and its prefix.
    fn block(&self, id: u32, j: u8) -> u64 {
        u64::from(id) * u64::from(self.spec.per_id) + u64::from(j)
    }

    fn content(&self, block: u64) -> u64 {
        mix(block ^ mix(self.seed))
    }

    fn name(&self, engine: u32, block: u64) -> u64 {
        let name = mix(block ^ mix(self.seed ^ 0x6e61_6d65));
        if self.spec.own_names { mix(name ^ mix(u64::from(engine) + 1)) } else { name }
    }
}

/// Chooses the engines that run each request.
///
/// A conversation is known by the second trace block (the first is the system prompt they all share). With one
/// copy, a request follows its conversation's last engine nine times in ten, as behind a cache-aware router, and
/// goes to a random one else; a new conversation starts on a random one. With several copies, a conversation
/// has that many engines, drawn by a hash of its second block, and every turn runs on all of them.
fn route(spec: &Spec, trace: &Trace, seed: u64) -> Vec<Vec<u32>> {
    let mut rng = Rng::new(seed ^ 0x726f_7574);
    let mut last: HashMap<u32, u32> = HashMap::new();
    let engines = spec.engines as usize;
    let mut routes = Vec::with_capacity(trace.requests.len());
    for (number, ids) in trace.requests.iter().enumerate() {
        let conversation = ids.get(1).copied();
        if spec.copies == 1 {
            let home = conversation.and_then(|c| last.get(&c)).copied();
            let engine = match home {
                Some(home) if rng.unit() < 0.9 => home,
                _ => rng.below(engines) as u32,
            };
            if let Some(c) = conversation {
                last.insert(c, engine);
            }
            routes.push(vec![engine]);
        } else {
            let key = conversation.map_or(u64::MAX - number as u64, u64::from);
            let mut draw = Rng::new(seed ^ mix(key));
            let mut chosen = Vec::with_capacity(spec.copies as usize);
            while chosen.len() < spec.copies as usize {
                let engine = draw.below(engines) as u32;
                if !chosen.contains(&engine) {
                    chosen.push(engine);
                }
            }
            routes.push(chosen);
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::{PlainEvent, Workload};
    use crate::specs::SPECS;
    use crate::trace::Trace;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn streams_are_well_formed_and_the_second_lap_repeats() {
        let trace = Trace::generate(400, 3);
        for mut spec in SPECS {
            spec.capacity = 256 * u32::from(spec.per_id);
            spec.engines = 8;
            spec.copies = spec.copies.min(4);
            let w = Workload::build(spec, &trace, 5, 2);
            let mut held: HashSet<(u32, u64)> = HashSet::new();
            let mut out = PlainEvent::default();
            let mut apply = |event, held: &mut HashSet<(u32, u64)>| {
                w.spell(event, &mut out);
                if out.store {
                    assert!(out.parent.is_none_or(|p| held.contains(&(out.engine, p))));
                    assert_eq!(out.names.len(), out.contents.len());
                    out.names.iter().for_each(|&n| assert!(held.insert((out.engine, n))));
                } else {
                    out.names.iter().for_each(|&n| assert!(held.remove(&(out.engine, n))));
                }
            };
            for number in 0..w.first_lap {
                w.events_of(number).iter().for_each(|e| apply(e, &mut held));
            }
            assert_eq!(held.len() as u64, w.held);
            let mut emptied = held.clone();
            w.drain().iter().for_each(|e| apply(e, &mut emptied));
            assert!(emptied.is_empty());
            let before = held.clone();
            assert!(!w.events_after_first_lap().is_empty());
            w.events_after_first_lap().iter().for_each(|e| apply(e, &mut held));
            assert_eq!(held, before);
        }
    }

    #[test]
    fn following_the_events_gives_what_the_pools_hold() {
        let mut spec = SPECS[1];
        spec.capacity = 2_048;
        let w = Workload::build(spec, &Trace::generate(300, 3), 5, 1);
        let mut held = vec![HashMap::new(); spec.engines as usize];
        for number in 0..w.first_lap {
            w.events_of(number).iter().for_each(|e| w.follow(e, &mut held));
        }
        let total: u64 = held.iter().flat_map(|h| h.values()).map(|&n| u64::from(n)).sum();
        assert_eq!(total, w.held);
    }
}
