//! Search for the engine that stores an item for which the router has no record, because the router restarted or the
//! client created the item through another router. All engines are asked for the item, and the engine that has the item
//! is recorded.
//!
//! Clients can send any id. An id that no engine knows is not searched again for a while, and the number of
//! unsuccessful searches a second is limited, so that a client with invented ids cannot keep all engines busy.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::HeaderMap;
use hyper::{Method, Uri};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::config::Role;
use crate::engines::fleet::Fleet;
use crate::engines::request_head::EngineRequest;
use crate::engines::{Engine, HealthState};

/// Time limit of a search for a stored item; afterwards the request is routed without a result.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time limit for one engine's answer to a search for a stored item.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// Maximum number of concurrent searches for stored items.
const SEARCHES: usize = 8;
/// Maximum number of engines that one search asks concurrently.
const AT_ONCE: usize = 16;

/// Maximum number of unsuccessful searches for stored items a second.
const IN_VAIN: u32 = 32;

/// Maximum number of recently searched ids for which the record that no engine has them is kept.
const MOST: usize = 4096;
/// Time for which an id that no engine has is not searched again.
const TTL: Duration = Duration::from_secs(10);

/// State and limits of the searches for engines that store items without a record.
pub(crate) struct KeeperSearch {
    turns: Semaphore,
    missing: Mutex<MissingNames>,
}

/// Outcome of a search for the engine that stores an item, such as a response or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SearchResult {
    /// The engine with the given name has the item.
    Found(Arc<str>),
    /// No engine that answered the search has the item.
    Nowhere,
    /// No engine was asked: the same id was searched a moment ago, or too many searches failed lately.
    NotAsked,
}

/// Recently searched ids that no engine has, and the number of unsuccessful searches in the current second.
#[derive(Default)]
struct MissingNames {
    names: HashMap<Arc<str>, Instant>,
    order: VecDeque<(Instant, Arc<str>)>,
    since: Option<Instant>,
    count: u32,
}

impl Default for KeeperSearch {
    fn default() -> Self {
        Self { turns: Semaphore::new(SEARCHES), missing: Mutex::default() }
    }
}

impl KeeperSearch {
    /// Asks all engines for the item with the id `id`. `headers`: the request's headers, with the client's credentials
    /// for engines.
    pub(crate) async fn find(&self, fleet: &Fleet, id: &str, path: &Uri, headers: &HeaderMap) -> SearchResult {
        let may_have = |engine: &&Arc<Engine>| {
            engine.config.role != Role::Prefill && engine.health.standing() != HealthState::Down
        };
        let engines: Vec<Arc<Engine>> = fleet.engines().iter().filter(may_have).cloned().collect();
        // The only one gets the request anyway.
        if engines.len() < 2 {
            return SearchResult::Nowhere;
        }
        if !self.missing.lock().may_look_for(id, Instant::now()) {
            return SearchResult::NotAsked;
        }
        let searching = async {
            let _turn = self.turns.acquire().await.ok()?;
            Some(ask_all(engines, path, headers).await)
        };
        let answers = timeout(PATIENCE, searching).await.ok().flatten();
        if let Some(Answers { keeper: Some(keeper), .. }) = answers {
            return SearchResult::Found(keeper);
        }
        self.missing.lock().note(id, answers.is_some_and(|answers| answers.are_all), Instant::now());
        SearchResult::Nowhere
    }
}

/// Engines' answers to a search for a stored item.
struct Answers {
    keeper: Option<Arc<str>>,
    /// True if every engine answered clearly that it has, or does not have, the item.
    are_all: bool,
}

async fn ask_all(engines: Vec<Arc<Engine>>, path: &hyper::Uri, headers: &HeaderMap) -> Answers {
    let mut asked = JoinSet::new();
    let mut answers = Answers { keeper: None, are_all: true };
    let mut rest = engines.into_iter();
    loop {
        while asked.len() < AT_ONCE
            && let Some(engine) = rest.next()
        {
            let question = EngineRequest { method: &Method::GET, uri: path, headers, id: None, plain: false };
            let mut head = Vec::new();
            question.write(&engine, None, 0, None, &mut head);
            asked.spawn(async move {
                let has_it = timeout(ENGINE_PATIENCE, has(&engine, &head)).await.ok().flatten();
                (engine.name.clone(), has_it)
            });
        }
        // What is not asked any more when one has it is let go of with the set.
        match asked.join_next().await {
            None => return answers,
            Some(Ok((name, Some(true)))) => {
                answers.keeper = Some(name);
                return answers;
            }
            Some(Ok((_, Some(false)))) => {}
            Some(Ok((_, None)) | Err(_)) => answers.are_all = false,
        }
    }
}

/// True if an engine has the item that the request head `head` asks for; None if the engine's answer is no clear yes or
/// no.
async fn has(engine: &Engine, head: &[u8]) -> Option<bool> {
    let mut connection = engine.new_connection().await.ok()?;
    // The head of the answer is enough.
    let status = connection.ask(head, b"", &Method::GET).await.ok()?.status;
    match status.as_u16() {
        200..=299 | 304 => Some(true),
        400..=499 if !matches!(status.as_u16(), 401 | 403 | 408 | 429) => Some(false),
        _ => None,
    }
}

impl MissingNames {
    /// True if a search for the id `name` is allowed: no search for `name` failed lately, and fewer than [`IN_VAIN`]
    /// searches failed this second.
    fn may_look_for(&mut self, name: &str, now: Instant) -> bool {
        if self.names.get(name).is_some_and(|since| now.duration_since(*since) <= TTL) {
            return false;
        }
        if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count < IN_VAIN
    }

    /// Records an unsuccessful search for the id `name`. `is_sure`: true if all engines answered that they do not have
    /// the item.
    fn note(&mut self, name: &str, is_sure: bool, now: Instant) {
        self.count += 1;
        if !is_sure {
            return;
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone(), now);
        self.order.push_back((now, name));
        while let Some((since, name)) = self.order.front()
            && (self.order.len() > MOST || now.duration_since(*since) > TTL)
        {
            if self.names.get(name).is_some_and(|last| last == since) {
                self.names.remove(name);
            }
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_in_vain_is_bounded() {
        let (mut missing, start) = (MissingNames::default(), Instant::now());
        assert!(missing.may_look_for("a", start));
        missing.note("a", true, start);
        assert!(!missing.may_look_for("a", start + TTL));
        missing.note("unclear", false, start);
        assert!(missing.may_look_for("unclear", start), "an engine did not say");
        for number in 2..IN_VAIN {
            assert!(missing.may_look_for("x", start), "{number}");
            missing.note(&format!("r{number}"), true, start);
        }
        assert!(!missing.may_look_for("x", start), "so many in a second");
        assert!(missing.may_look_for("x", start + Duration::from_secs(1)));
        for number in 0..2 * MOST {
            missing.note(&format!("s{number}"), true, start);
        }
        assert!(missing.names.len() <= MOST && missing.order.len() <= MOST);
        missing.note("last", true, start + 2 * TTL);
        assert_eq!((missing.names.len(), missing.order.len()), (1, 1));
        assert!(missing.may_look_for("a", start + 2 * TTL));
    }
}
