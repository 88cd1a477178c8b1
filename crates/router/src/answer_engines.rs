//! Notes of which engine keeps which answer: a client that goes on from one, asks for it again or cancels it means that
//! engine.
//!
//! Engines keep answers of `/v1/responses` in their own memory. The router notes who made which as they pass.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memchr::memmem;

use crate::lock;

/// Answers that are kept in mind, and for how long: then the oldest goes.
const MOST: usize = 65_536;
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Bytes of a name at most: engines' own have 37.
const LONGEST: usize = 128;

/// Bytes at the beginning of an answer among which its name is looked for.
const BEGINNING: usize = 4 << 10;

/// Path under which an answer can be asked for.
const PATH: &str = "/v1/responses/";

/// The answers that engines keep, each with the engine that made it.
#[derive(Default)]
pub(crate) struct AnswerEngines {
    kept: Mutex<AnswerTable>,
    /// Requests for an answer or going on from one: by [`FOUND`].
    pub(crate) asked: [AtomicU64; 3],
}

/// The outcomes of looking for an answer's engine: it is known; nobody knows it; it is gone.
pub(crate) const FOUND: [&str; 3] = ["known", "unknown", "engine_gone"];

#[derive(Default)]
struct AnswerTable {
    engines: HashMap<Arc<str>, (Arc<str>, Instant)>,
    order: VecDeque<(Instant, Arc<str>)>,
}

impl AnswerEngines {
    /// Notes that `engine` has made the answer `id`.
    pub(crate) fn insert(&self, id: &str, engine: &Arc<str>) {
        lock(&self.kept).insert(id, engine, Instant::now(), MOST);
    }

    /// Answers that are kept in mind.
    pub(crate) fn len(&self) -> usize {
        lock(&self.kept).engines.len()
    }

    /// The engine that made an answer. `is_there`: whether there is an engine of that name.
    pub(crate) fn engine_of(&self, id: &str, is_there: impl FnOnce(&str) -> bool) -> Option<Arc<str>> {
        let engine = lock(&self.kept).get(id, Instant::now());
        let (at, engine) = match engine {
            None => (1, None),
            Some(engine) if !is_there(&engine) => (2, None),
            engine => (0, engine),
        };
        self.asked[at].fetch_add(1, Relaxed);
        engine
    }
}

impl AnswerTable {
    fn insert(&mut self, id: &str, engine: &Arc<str>, now: Instant, most: usize) {
        let id: Arc<str> = id.into();
        // The same name again begins its time anew; the older note of it is passed over when it comes up.
        self.engines.insert(id.clone(), (engine.clone(), now));
        self.order.push_back((now, id));
        while let Some((since, id)) = self.order.front()
            && (self.order.len() > most || now.duration_since(*since) > TTL)
        {
            if self.engines.get(id).is_some_and(|(_, last)| last == since) {
                self.engines.remove(id);
            }
            self.order.pop_front();
        }
    }

    fn get(&self, id: &str, now: Instant) -> Option<Arc<str>> {
        let (engine, since) = self.engines.get(id)?;
        (now.duration_since(*since) <= TTL).then(|| engine.clone())
    }
}

/// The answer that a path names: `/v1/responses/ID`, `/v1/responses/ID/cancel`, ….
pub(crate) fn of_path(path: &str) -> Option<&str> {
    let id = path.strip_prefix(PATH)?.split('/').next()?;
    (!id.is_empty() && id.len() <= LONGEST).then_some(id)
}

/// Looks for an answer's name at its beginning, as it passes.
#[derive(Default)]
pub(crate) struct Name {
    beginning: Vec<u8>,
    over: bool,
}

impl Name {
    /// Returns the answer's name once it has been found, and nothing after that.
    pub(crate) fn look(&mut self, data: &[u8]) -> Option<String> {
        if self.over {
            return None;
        }
        let room = BEGINNING - self.beginning.len();
        self.beginning.extend_from_slice(&data[..data.len().min(room)]);
        let found = named(&self.beginning);
        self.over = found.is_some() || self.beginning.len() == BEGINNING;
        if self.over {
            self.beginning = Vec::new();
        }
        found
    }
}

/// The first `id` in a text, whether it is the answer itself or the event that says that it was begun.
fn named(text: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\"id\"";
    let rest = text[memmem::find(text, KEY)? + KEY.len()..].trim_ascii_start();
    let rest = rest.strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    let name = &rest[..memchr::memchr(b'"', rest)?];
    let is_plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte));
    (is_plain && !name.is_empty() && name.len() <= LONGEST).then(|| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_however_they_are_cut() {
        let whole = br#"{"id": "resp_1-a", "object": "response", "output": [{"id": "msg_2"}]}"#;
        let event =
            b"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1-a\"}}\n\n";
        for text in [&whole[..], &event[..]] {
            for cut in 1..text.len() {
                let mut name = Name::default();
                let found: Vec<_> = text.chunks(cut).filter_map(|piece| name.look(piece)).collect();
                assert_eq!(found, ["resp_1-a"], "pieces of {cut}");
            }
        }
        assert_eq!(Name::default().look(&[b'x'; 1 << 20]), None);
        assert_eq!(Name::default().look(br#"{"id": 5}"#), None);
    }

    #[test]
    fn paths() {
        assert_eq!(of_path("/v1/responses/resp_1"), Some("resp_1"));
        assert_eq!(of_path("/v1/responses/resp_1/cancel"), Some("resp_1"));
        assert_eq!(of_path("/v1/responses"), None);
        assert_eq!(of_path("/v1/responses/"), None);
    }

    #[test]
    fn what_is_kept_is_bounded_and_ends() {
        let (mut kept, start) = (AnswerTable::default(), Instant::now());
        let engine: Arc<str> = "a".into();
        for number in 0..100 {
            kept.insert(&format!("r{number}"), &engine, start, 10);
            kept.insert("again", &engine, start + Duration::from_millis(number), 10);
        }
        assert!(kept.engines.len() <= 10 && kept.order.len() <= 10);
        assert!(kept.get("r99", start).is_some() && kept.get("r0", start).is_none());
        assert!(kept.get("again", start + TTL).is_some());
        kept.insert("new", &engine, start + TTL + Duration::from_secs(1), 10);
        assert_eq!(kept.engines.len(), 1);
        assert!(kept.get("r99", start + TTL + Duration::from_secs(1)).is_none());
    }
}
