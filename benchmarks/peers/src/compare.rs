//! All answers against each other, and against what the engines hold.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use crate::adapters::Adapter;
use crate::shrink::{describe, shrink, truth};
use crate::specs::Spec;
use crate::workload::{PlainEvent, Workload};

/// An index of any kind, for asking rather than timing.
pub trait LiveAdapter {
    fn take(&mut self, spelled: &PlainEvent);
    fn answer(&mut self, contents: &[u64]) -> Vec<(u32, u32)>;
}

impl<A: Adapter> LiveAdapter for A {
    fn take(&mut self, spelled: &PlainEvent) {
        let mut event = Self::event(spelled);
        self.apply(&mut event);
    }

    fn answer(&mut self, contents: &[u64]) -> Vec<(u32, u32)> {
        self.settle();
        self.depths(contents)
    }
}

/// Makes an index: its name, and how.
pub struct Maker {
    pub name: &'static str,
    pub make: fn(&Spec) -> Result<Box<dyn LiveAdapter>, String>,
}

pub fn maker<A: Adapter + 'static>() -> Maker {
    Maker { name: A::NAME, make: |spec| Ok(Box::new(A::build(spec)?)) }
}

/// A wrong answer, and the smallest stream that shows it.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    pub index: &'static str,
    pub request: usize,
    pub engine: u32,
    pub said: u32,
    pub held: u32,
    pub stream: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    pub indexes: Vec<&'static str>,
    /// Queries asked of every index.
    pub queries: usize,
    /// Scores (query, engine) that were above zero.
    pub scores: usize,
    /// Wrong answers by index.
    pub wrong: Vec<usize>,
    /// The first difference of each index.
    pub differences: Vec<Difference>,
}

/// Feeds the stream to all and asks all, about `samples` times on the way.
pub fn compare(w: &Workload, makers: &[&Maker], samples: usize) -> Comparison {
    let made: Vec<_> = makers.iter().filter_map(|m| Some((m, (m.make)(&w.spec).ok()?))).collect();
    let (makers, mut indexes): (Vec<&&Maker>, Vec<_>) = made.into_iter().unzip();
    let mut result = Comparison {
        indexes: makers.iter().map(|m| m.name).collect(),
        wrong: vec![0; makers.len()],
        ..Comparison::default()
    };
    let mut held = vec![HashMap::new(); w.spec.engines as usize];
    let (mut spelled, mut contents) = (PlainEvent::default(), Vec::new());
    let stride = (w.first_lap / samples.max(1)).max(1);
    for number in 0..w.first_lap {
        // Before the request's events (what a router asks) and, for every other sample, after them.
        let ask_after = number % (2 * stride) == stride;
        if ask_after || number % stride != 0 {
            for event in w.events_of(number) {
                w.spell(event, &mut spelled);
                w.follow(event, &mut held);
                indexes.iter_mut().for_each(|index| index.take(&spelled));
            }
        }
        if number % stride == 0 {
            w.query(number, &mut contents);
            let expected = depths(w, number, &held);
            result.queries += 1;
            result.scores += expected.len();
            for (i, index) in indexes.iter_mut().enumerate() {
                let said = index.answer(&contents);
                if said != expected {
                    result.wrong[i] += 1;
                    if !result.differences.iter().any(|d| d.index == makers[i].name) {
                        result.differences.push(explain(w, makers[i], number, ask_after, &said, &expected));
                    }
                }
            }
            if !ask_after {
                for event in w.events_of(number) {
                    w.spell(event, &mut spelled);
                    w.follow(event, &mut held);
                    indexes.iter_mut().for_each(|index| index.take(&spelled));
                }
            }
        }
    }
    result
}

/// The depth of every engine by what it holds.
fn depths(w: &Workload, number: usize, held: &[HashMap<u32, u8>]) -> Vec<(u32, u32)> {
    let depth = |held: &HashMap<u32, u8>| {
        let mut depth = 0;
        for id in w.ids_of(number) {
            let here = held.get(id).copied().unwrap_or(0);
            depth += u32::from(here);
            if here < w.spec.per_id {
                break;
            }
        }
        depth
    };
    (0..).zip(held).map(|(engine, held)| (engine, depth(held))).filter(|&(_, depth)| depth > 0).collect()
}

fn explain(
    w: &Workload,
    maker: &Maker,
    number: usize,
    after: bool,
    said: &[(u32, u32)],
    expected: &[(u32, u32)],
) -> Difference {
    let of = |answer: &[(u32, u32)], engine| answer.iter().find(|a| a.0 == engine).map_or(0, |a| a.1);
    let engine = said.iter().chain(expected).map(|a| a.0).find(|&e| of(said, e) != of(expected, e)).unwrap_or(0);
    let mut query = Vec::new();
    w.query(number, &mut query);
    let events: Vec<_> = (0..number + usize::from(after)).flat_map(|n| w.events_of(n)).collect();
    let spell = |all: bool| -> Vec<PlainEvent> {
        let chosen = events.iter().filter(|e| all || e.engine == engine);
        chosen
            .map(|event| {
                let mut out = PlainEvent::default();
                w.spell(event, &mut out);
                out
            })
            .collect()
    };
    let wrong = |events: &[PlainEvent]| {
        let Some(expected) = truth(events, &query) else { return false };
        let Ok(mut index) = (maker.make)(&w.spec) else { return false };
        events.iter().for_each(|event| index.take(event));
        index.answer(&query) != expected
    };
    // One engine's own stream first: if that shows it, all others are out of the picture at once.
    let alone = spell(false);
    let start = if wrong(&alone) { alone } else { spell(true) };
    let stream = if wrong(&start) {
        describe(&shrink(start, Duration::from_secs(60), wrong), &query)
    } else {
        "  (not shown again by the same stream: it depends on timing)\n".to_owned()
    };
    Difference {
        index: maker.name,
        request: number,
        engine,
        said: of(said, engine),
        held: of(expected, engine),
        stream,
    }
}
