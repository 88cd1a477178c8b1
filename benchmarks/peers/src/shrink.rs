//! Shrinks a stream on which an index answers wrongly to the smallest one found that still shows it.
//!
//! Delta debugging: leave out ever smaller stretches of events, then trim what is left, as long as the answer stays
//! wrong. Only streams an engine could emit are tried (parents held, no block stored twice, nothing unknown
//! removed): otherwise every index that refuses orphans would look broken.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::workload::PlainEvent;

/// The blocks that one engine holds: block name -> (parent, content).
type Held = HashMap<u64, (Option<u64>, u64)>;

/// The plain truth about a stream: the depth of every engine, or `None` if no engine would emit it.
pub fn truth(events: &[PlainEvent], query: &[u64]) -> Option<Vec<(u32, u32)>> {
    let mut engines: HashMap<u32, Held> = HashMap::new();
    for event in events {
        let held = engines.entry(event.engine).or_default();
        if !event.store {
            for name in &event.names {
                held.remove(name)?;
            }
            continue;
        }
        let mut parent = event.parent;
        if parent.is_some_and(|p| !held.contains_key(&p)) {
            return None;
        }
        for (&name, &content) in event.names.iter().zip(&event.contents) {
            if held.insert(name, (parent, content)).is_some() {
                return None;
            }
            parent = Some(name);
        }
    }
    let mut depths: Vec<_> =
        engines.iter().map(|(&engine, held)| (engine, depth(held, query))).filter(|&(_, d)| d > 0).collect();
    depths.sort_unstable();
    Some(depths)
}

fn depth(held: &Held, query: &[u64]) -> u32 {
    let children: HashMap<(Option<u64>, u64), u64> = held.iter().map(|(&name, &block)| (block, name)).collect();
    let mut at = None;
    for (depth, &content) in (0..).zip(query) {
        match children.get(&(at, content)) {
            Some(&name) => at = Some(name),
            None => return depth,
        }
    }
    query.len() as u32
}

/// The smallest stream found for which `wrong` still holds. `wrong` must hold for `events`.
pub fn shrink(
    mut events: Vec<PlainEvent>,
    limit: Duration,
    mut wrong: impl FnMut(&[PlainEvent]) -> bool,
) -> Vec<PlainEvent> {
    let start = Instant::now();
    loop {
        let before = size(&events);
        let mut stretch = events.len().div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < events.len() && start.elapsed() < limit {
                let mut fewer = events.clone();
                fewer.drain(at..(at + stretch).min(events.len()));
                if wrong(&fewer) {
                    events = fewer;
                } else {
                    at += stretch;
                }
            }
            if stretch == 1 {
                break;
            }
            stretch = stretch.div_ceil(2);
        }
        for at in 0..events.len() {
            let mut stretch = events[at].names.len() / 2;
            while stretch > 0 && start.elapsed() < limit {
                let mut trimmed = events.clone();
                trim(&mut trimmed[at], stretch);
                if !trimmed[at].names.is_empty() && wrong(&trimmed) {
                    events = trimmed;
                    stretch = stretch.min(events[at].names.len() / 2).max(1);
                    if events[at].names.len() == 1 {
                        break;
                    }
                } else {
                    stretch /= 2;
                }
            }
        }
        if size(&events) == before || start.elapsed() >= limit {
            return events;
        }
    }
}

/// A store loses its last blocks; a removal its first (what is removed first is deepest).
fn trim(event: &mut PlainEvent, blocks: usize) {
    if event.store {
        event.names.truncate(event.names.len() - blocks);
        event.contents.truncate(event.names.len());
    } else {
        event.names.drain(..blocks);
    }
}

fn size(events: &[PlainEvent]) -> usize {
    events.iter().map(|e| 1 + e.names.len()).sum()
}

/// The stream as text, blocks numbered in order of appearance.
pub fn describe(events: &[PlainEvent], query: &[u64]) -> String {
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    let mut text = String::new();
    for event in events {
        let mut number = |name: u64| {
            let next = numbers.len();
            *numbers.entry(name).or_insert(next)
        };
        let parent = event.parent.map(&mut number);
        let names: Vec<usize> = event.names.iter().map(|&n| number(n)).collect();
        text += &if event.store {
            let at: Vec<_> = event.contents.iter().map(|c| query.iter().position(|q| q == c)).collect();
            format!("  engine {}: store {names:?} after {parent:?}, in the query at {at:?}\n", event.engine)
        } else {
            format!("  engine {}: remove {names:?}\n", event.engine)
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{describe, shrink, truth};
    use crate::workload::PlainEvent;
    use std::time::Duration;

    fn store(engine: u32, parent: Option<u64>, names: &[u64]) -> PlainEvent {
        PlainEvent { engine, store: true, parent, names: names.to_vec(), contents: names.to_vec() }
    }

    #[test]
    fn finds_the_two_events_that_matter() {
        let mut events: Vec<_> = (0..40).map(|i| store(i % 3, None, &[1_000 + u64::from(i)])).collect();
        events.insert(7, store(0, None, &[1, 2, 3, 4, 5]));
        events.insert(30, PlainEvent { engine: 0, store: false, names: vec![5, 4], ..PlainEvent::default() });
        let query = [1, 2, 3, 4, 5];
        // Says "wrong" of any stream in which engine 0 first held block 4 and then lost it.
        let wrong = |events: &[PlainEvent]| {
            truth(events, &query).is_some() && events.iter().any(|e| !e.store && e.names.contains(&4))
        };
        let small = shrink(events, Duration::from_secs(5), wrong);
        assert_eq!(small.len(), 2, "{}", describe(&small, &query));
        assert_eq!(small[0].names, [1, 2, 3, 4]);
        assert_eq!(small[1].names, [4]);
    }

    #[test]
    fn truth_refuses_what_no_engine_emits() {
        assert!(truth(&[store(0, Some(9), &[1])], &[1]).is_none());
        assert!(truth(&[store(0, None, &[1]), store(0, None, &[1])], &[1]).is_none());
        assert_eq!(truth(&[store(3, None, &[1, 2])], &[1, 7]), Some(vec![(3, 1)]));
    }
}
