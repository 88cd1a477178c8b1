//! Sessions: groups of requests that belong together, such as the turns of a chat or the requests of an agent. This
//! file handles sessions without a name, which are recognized by their prompts.
//!
//! | file | contents |
//! |---|---|
//! | `named.rs` | sessions named in headers and fields of the body |
//! | `memory.rs` | the most recent sessions |
//! | `habits.rs` | sessions whose prompts begin differently each time |
//! | `turn.rs` | the session that a request names, and the request's position in the session |

mod habits;
mod memory;
mod named;
mod turn;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use hyper::header::{HeaderMap, HeaderName};
use kvatlas_prompt::Endpoint;
use kvatlas_routing::Kind;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::memory::Lru;
use crate::answers::observe::Stop;
use crate::clock::seconds;
use crate::config::{Config, Source};
use crate::error::Error;
use crate::requests::fleet_secret::FleetSecret;
use habits::Habits;
pub(crate) use memory::KeySeed;
use memory::Memory;
pub(crate) use named::BodyNames;
use named::Headers;
use turn::{Class, ShownUnder};
pub(crate) use turn::{Hints, Identity, Name, Turn};

/// Recognition and records of the sessions to which requests belong.
pub(crate) struct Sessions {
    /// Places of a request that may name a session, in the order in which they are searched.
    sources: Vec<Source>,
    own_header: Option<HeaderName>,
    memory: Mutex<Memory>,
    shown_under: ShownUnder,
    habits: Mutex<Habits>,
    chains: Chains,
    /// Number of sessions without a name that have begun. A session's key is derived from this number and a random seed,
    /// so that no other router generates equal keys.
    started: AtomicU64,
    has_warned: AtomicBool,
    seed: u64,
    /// Number of prompts by the place of the request that named their session, in the order of [`Source::ALL`]; the
    /// last number counts the prompts without a session.
    pub(crate) by_source: [AtomicU64; Source::ALL.len() + 1],
    /// Number of prompts in sessions, by the kind of turn ([`Kind::ALL`]).
    pub(crate) by_kind: [AtomicU64; Kind::ALL.len()],
}

/// Parts of a prompt that are compared with earlier prompts, to find the session that the prompt continues.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompt<'a> {
    pub(crate) hashes: &'a Arc<[u64]>,
    pub(crate) tokens: u32,
    pub(crate) block_size: u32,
}

impl Sessions {
    pub(crate) fn new(config: &Config, secret: &FleetSecret) -> Result<Self, Error> {
        let own = Some(config.session_header.as_str()).filter(|name| !name.is_empty());
        let own_header = own.map(|name| {
            HeaderName::try_from(name)
                .map_err(|_| Error::config(format!("session_header: {name:?} is no header's name")))
        });
        let shown_under = ShownUnder::new(secret.key("kvatlas 2026-11-28 names of sessions"));
        Ok(Self {
            sources: config.session_sources.clone(),
            own_header: own_header.transpose()?,
            memory: Mutex::new(Memory::new(shown_under.clone())),
            shown_under,
            habits: Mutex::new(Habits::new()),
            chains: Chains::new(),
            started: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            seed: RandomState::new().hash_one(0),
            by_source: Default::default(),
            by_kind: Default::default(),
        })
    }

    /// Returns the session named in a request, or None, and further facts that the client states.
    pub(crate) fn identify(&self, headers: &HeaderMap, body: &BodyNames) -> (Option<Identity>, Hints) {
        if self.sources.is_empty() {
            return (None, Hints::default());
        }
        let headers = Headers::of(headers, self.own_header.as_ref());
        let named = |source: &Source| headers.name(*source).or_else(|| body.name(*source));
        let found = self.sources.iter().find_map(|source| Some(Identity { name: named(source)?, source: *source }));
        (found, headers.hints)
    }

    /// Returns the position of a request in its session, without recording the request. None if the request belongs to
    /// no known session.
    pub(crate) fn look(&self, named: Option<Identity>, hints: Hints, prompt: Prompt<'_>) -> Option<Turn> {
        let identity = named.or_else(|| self.continued(prompt).map(unnamed))?;
        Some(self.memory.lock().look(identity, hints, seconds()))
    }

    /// Records a prompt in its session, and returns its position there. None if the session is unknown.
    pub(crate) fn begin(&self, named: Option<Identity>, hints: Hints, prompt: Prompt<'_>) -> Option<Arc<Turn>> {
        let identity = named.or_else(|| self.continue_or_start(prompt).map(unnamed));
        let source = identity.and_then(|identity| Source::ALL.iter().position(|source| *source == identity.source));
        self.by_source[source.unwrap_or(Source::ALL.len())].fetch_add(1, Relaxed);
        let turn = {
            let mut memory = self.memory.lock();
            let turn = memory.look(identity?, hints, seconds());
            memory.begin(&turn);
            turn
        };
        if let Some(kind) = Kind::ALL.iter().position(|kind| *kind == turn.kind) {
            self.by_kind[kind].fetch_add(1, Relaxed);
        }
        self.watch(&turn, prompt);
        Some(Arc::new(turn))
    }

    /// Records the end of the answer to a prompt. `id`: number by which the decision core (which chooses engines)
    /// identifies the request.
    pub(crate) fn end(&self, turn: &Turn, id: u64, stop: Option<Stop>) {
        self.memory.lock().end(turn, id, stop, seconds());
    }

    /// Detects and logs sessions whose prompts begin differently each time, so that no cache helps.
    fn watch(&self, turn: &Turn, prompt: Prompt<'_>) {
        // Sessions without names are recognized by their beginnings.
        if turn.source == Source::Prefix || turn.hints.class == Some(Class::Auxiliary) {
            return;
        }
        let mut habits = self.habits.lock();
        if turn.hints.is_compacted || turn.kind == Kind::Compaction {
            habits.forget(turn.session);
            return;
        }
        let found = habits.look(turn.session, prompt.hashes, prompt.tokens, prompt.block_size, seconds());
        drop(habits);
        let Some(found) = found else { return };
        if !self.has_warned.swap(true, Relaxed) {
            tracing::warn!(
                session = self.shown_under.hex(found.session),
                differs_at_token = found.differs_at,
                tokens = found.tokens,
                "a session's prompts begin differently turn after turn, so that no cache is of use to it: something that \
                 changes, such as a time or a counter, stands early in them; further ones are only counted"
            );
        }
    }

    /// Returns the number of turns (requests) whose prompts began differently from earlier ones so that no cache
    /// helped, and the number of sessions with these turns in the last ten minutes.
    pub(crate) fn lost_turns(&self) -> (u64, usize) {
        let habits = self.habits.lock();
        (habits.turns(), habits.count(seconds()))
    }

    /// Returns the sessions whose prompts begin differently each time, as JSON for a web page; None if there were none
    /// lately.
    pub(crate) fn habits(&self) -> Option<Value> {
        self.habits.lock().to_json(seconds(), &self.shown_under)
    }

    /// Number of sessions in the table of recent sessions.
    pub(crate) fn len(&self) -> usize {
        self.memory.lock().len()
    }

    /// Returns the key of the session without a name that a prompt continues; None if it continues none. The next turn
    /// of a session comes after the answer to the last one, and has a longer prompt.
    fn continued(&self, prompt: Prompt<'_>) -> Option<u64> {
        if !self.sources.contains(&Source::Prefix) {
            return None;
        }
        let end = self.chains.find(prompt.hashes)?;
        (prompt.tokens > end.tokens && self.memory.lock().has_answer(end.session)).then_some(end.session)
    }

    /// Returns the key of the session without a name that a prompt continues or starts. None if these sessions are not
    /// tracked, or the prompt has no full block.
    fn continue_or_start(&self, prompt: Prompt<'_>) -> Option<u64> {
        if prompt.hashes.is_empty() || !self.sources.contains(&Source::Prefix) {
            return None;
        }
        let session = self.continued(prompt).unwrap_or_else(|| {
            let count = self.started.fetch_add(1, Relaxed);
            xxh3_64_with_seed(&count.to_le_bytes(), self.seed)
        });
        self.chains.insert(prompt.hashes, End { session, tokens: prompt.tokens });
        Some(session)
    }
}

/// True if requests at an endpoint are turns of sessions.
pub(crate) fn has_turns(endpoint: Option<Endpoint>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint != Endpoint::Embeddings)
}

fn unnamed(key: u64) -> Identity {
    Identity { name: Name { key, parent: None }, source: Source::Prefix }
}

/// Maximum number of prompts whose last blocks are recorded, to recognize the prompts that continue them.
const MOST: usize = 1 << 17;

/// Number of blocks, from the end of a prompt, among which the last block of an earlier prompt is sought: 16 K tokens
/// in blocks of 16. In recordings of coding agents, 95 % of the turns are shorter than a third of this number.
const LOOKED_AT: usize = 1024;

/// Last blocks of recent prompts, by which a prompt that continues one of them is recognized.
struct Chains {
    ends: RwLock<Lru<End>>,
}

/// Prompt of a session, found by the hash of its last block.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct End {
    session: u64,
    tokens: u32,
}

impl Chains {
    fn new() -> Self {
        Self { ends: RwLock::new(Lru::new(MOST, usize::MAX)) }
    }

    /// Returns the longest earlier prompt that is a prefix of the prompt with the hashes `hashes`; None if there is
    /// none.
    fn find(&self, hashes: &[u64]) -> Option<End> {
        let ends = self.read();
        let from = hashes.len().saturating_sub(LOOKED_AT);
        hashes.iter().enumerate().skip(from).rev().find_map(|(at, hash)| ends.get(key(at, *hash)).copied())
    }

    /// Records the last block of a session's prompt.
    fn insert(&self, hashes: &[u64], end: End) {
        let Some((at, hash)) = hashes.iter().enumerate().next_back() else { return };
        *self.write().used(key(at, *hash)) = end;
    }

    fn read(&self) -> RwLockReadGuard<'_, Lru<End>> {
        self.ends.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Lru<End>> {
        self.ends.write()
    }
}

/// Computes the key of a block from its position in the prompt and its hash.
fn key(at: usize, hash: u64) -> u64 {
    hash ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_beginning_is_found() {
        let chains = Chains::new();
        let end = |session, tokens| End { session, tokens };
        chains.insert(&[1, 2], end(1, 40));
        chains.insert(&[1, 2, 3, 4], end(2, 70));
        chains.insert(&[], end(3, 5));
        assert_eq!(chains.find(&[1, 2, 3, 4, 5, 6]), Some(end(2, 70)));
        assert_eq!(chains.find(&[1, 2, 3]), Some(end(1, 40)));
        // Equal blocks at other places are others.
        assert_eq!(chains.find(&[2, 1, 2]), None);
        assert_eq!(chains.find(&[]), None);
    }
}
