//! Record of the engine that stores each response, file and batch for a client. A request that continues, reads or
//! cancels a stored response, or names a file or a batch, has to be sent to the engine that stores it.
//!
//! Engines store these items in their own memory or on their own disk. The router records which engine created which
//! item as the answers pass. For an item without a record, the router asks the engines
//! ([`crate::answers::stored_search`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use memchr::memmem;
use parking_lot::Mutex;

use hyper::header::HeaderMap;
use hyper::{Method, Uri};

use crate::answers::stored_search::{KeeperSearch, SearchResult};
use crate::engines::fleet::Fleet;

/// Maximum number of recorded items that engines store for clients. The oldest records are dropped first.
const MOST: usize = 65_536;
/// Time for which the router records that an engine stores an item.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Maximum length of a stored item's id in bytes; ids made by engines have 37 bytes.
const LONGEST: usize = 128;

/// Number of bytes at the beginning of an answer that are searched for the answer's id.
const BEGINNING: usize = 4 << 10;

/// Paths at which a POST request creates an item that the engine stores; the item can then be read at `PATH/ID`.
const COLLECTIONS: [&str; 5] = [RESPONSES, FILES, "/v1/batches", "/v1/videos", "/v1/fine_tuning/jobs"];
const RESPONSES: &str = "/v1/responses";
const FILES: &str = "/v1/files";

/// An item that an engine stores for a client: a response, a file, a batch, ….
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptItem<'a> {
    collection: &'static str,
    pub(crate) id: &'a str,
}

/// Table of responses, files and other items that engines store, each with the engine that created it.
#[derive(Default)]
pub(crate) struct AnswerEngines {
    kept: Mutex<AnswerTable>,
    search: KeeperSearch,
    /// Number of requests that read a stored item or continue a stored response, by the outcome of the search for its
    /// engine ([`FOUND`]).
    pub(crate) asked: [AtomicU64; 5],
}

/// Outcomes of the search for the engine that stores an item: its record exists, no engine has it, its record names an
/// engine that has left, an engine reported having it, or no engine was asked.
pub(crate) const FOUND: [&str; 5] = ["known", "unknown", "engine_gone", "found", "not_asked"];

#[derive(Default)]
struct AnswerTable {
    engines: HashMap<Arc<str>, (Arc<str>, Instant)>,
    order: VecDeque<(Instant, Arc<str>)>,
}

impl AnswerEngines {
    /// Records in the table that the engine `engine` has created the item with the id `id`.
    pub(crate) fn insert(&self, id: &str, engine: &Arc<str>) {
        self.kept.lock().insert(id, engine, Instant::now(), MOST);
    }

    /// Number of stored items whose engine is recorded in the table.
    pub(crate) fn len(&self) -> usize {
        self.kept.lock().engines.len()
    }

    /// Returns the engine that stores an item: the recorded one, else an engine that reports having the item when
    /// asked. `headers`: the request's headers.
    pub(crate) async fn engine_of(&self, fleet: &Fleet, item: KeptItem<'_>, headers: &HeaderMap) -> Option<Arc<str>> {
        let noted = self.kept.lock().get(item.id, Instant::now());
        let is_gone = match noted {
            Some(engine) if fleet.engine(&engine).is_some() => {
                self.asked[0].fetch_add(1, Relaxed);
                return Some(engine);
            }
            noted => noted.is_some(),
        };
        let (at, engine) = match self.search.find(fleet, item.id, &item.path(), headers).await {
            SearchResult::Found(engine) => {
                self.insert(item.id, &engine);
                (3, Some(engine))
            }
            SearchResult::Nowhere if is_gone => (2, None),
            SearchResult::Nowhere => (1, None),
            SearchResult::NotAsked => (4, None),
        };
        self.asked[at].fetch_add(1, Relaxed);
        engine
    }
}

impl<'a> KeptItem<'a> {
    /// Returns the stored item that a path such as `/v1/responses/ID` or `/v1/files/ID/content` names; None for other
    /// paths.
    pub(crate) fn of_path(path: &'a str) -> Option<Self> {
        COLLECTIONS.iter().find_map(|collection| {
            let rest = path.strip_prefix(collection)?.strip_prefix('/')?;
            Self::new(collection, rest.split('/').next()?)
        })
    }

    /// Returns the stored response with the given id; None if the text cannot be an id.
    pub(crate) fn answer(id: &'a str) -> Option<Self> {
        Self::new(RESPONSES, id)
    }

    /// Returns the stored file with the given id; None if the text cannot be an id.
    pub(crate) fn file(id: &'a str) -> Option<Self> {
        Self::new(FILES, id)
    }

    fn new(collection: &'static str, id: &'a str) -> Option<Self> {
        is_name(id.as_bytes()).then_some(Self { collection, id })
    }

    /// Returns the path of a request that asks an engine for the stored item.
    pub(crate) fn path(&self) -> Uri {
        // Its characters are those of names, which are the same in a path.
        format!("{}/{}", self.collection, self.id).parse().unwrap_or_default()
    }
}

/// True if an engine stores the object that a request with the given method and path creates, such as a response or
/// file.
pub(crate) fn is_kept(method: &Method, path: &str) -> bool {
    *method == Method::POST && COLLECTIONS.contains(&path.strip_suffix('/').unwrap_or(path))
}

/// True if the bytes can be the id of a stored item, by their length and characters.
fn is_name(name: &[u8]) -> bool {
    let is_plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte));
    is_plain && !name.is_empty() && name.len() <= LONGEST
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

/// Search for the answer's id in the first bytes of an answer, as they pass.
#[derive(Default)]
pub(crate) struct Name {
    beginning: Vec<u8>,
    over: bool,
}

impl Name {
    /// Searches the next bytes of an answer for its id; returns the id once, when found, else None.
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

/// Returns the value of the first `id` in a text: the answer's id, or, in a stream, the id in the event that starts the
/// answer.
fn named(text: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\"id\"";
    let rest = text[memmem::find(text, KEY)? + KEY.len()..].trim_ascii_start();
    let rest = rest.strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    let name = &rest[..memchr::memchr(b'"', rest)?];
    is_name(name).then(|| String::from_utf8_lossy(name).into_owned())
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
        let named = |path| KeptItem::of_path(path).map(|item| (item.id, item.path().to_string()));
        for (path, id, asked) in [
            ("/v1/responses/resp_1", "resp_1", "/v1/responses/resp_1"),
            ("/v1/responses/resp_1/cancel", "resp_1", "/v1/responses/resp_1"),
            ("/v1/files/file-1/content", "file-1", "/v1/files/file-1"),
            ("/v1/batches/batch_1", "batch_1", "/v1/batches/batch_1"),
            ("/v1/fine_tuning/jobs/ft:1.2", "ft:1.2", "/v1/fine_tuning/jobs/ft:1.2"),
        ] {
            assert_eq!(named(path), Some((id, asked.to_owned())), "{path}");
        }
        for none in
            ["/v1/responses", "/v1/responses/", "/v1/files//x", "/v1/responsesx/1", "/v1/files/a%2Fb", "/v1/models/m"]
        {
            assert_eq!(named(none), None, "{none}");
        }
        assert!(is_kept(&Method::POST, "/v1/files") && is_kept(&Method::POST, "/v1/batches/"));
        assert!(!is_kept(&Method::GET, "/v1/files") && !is_kept(&Method::POST, "/v1/files/f"));
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
