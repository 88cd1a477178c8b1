//! Rung 2 of the ladder of index designs: an index owned by one thread (an actor), and messages to that thread.
//!
//! There is no lock, since only one thread ever uses the index: changes and queries are messages, and a caller waits
//! for the reply. This works for any [`LocalDesign`] unchanged. The cost is two transfers between threads for each
//! lookup, and that lookups run one after another.
//!
//! [`ShardedActors`] distribute the workers over several actors. Changes then spread over their threads, while each
//! lookup still asks every actor: more messages, shorter work.
//!
//! A change that panics counts as applied, the actor continues and [`Feed::broken`] returns the message, as in an
//! [`EventPool`](super::pool::EventPool). A lookup that panics does so in its caller.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, Builder, JoinHandle};

use crate::interface::{Change, Feed, LadderStats, LocalDesign, Scores, WorkerId};
use crate::mailbox::{Mailbox, PanicMessage, StickyThreads};
use kvatlas_index::BlockHash;

/// A single-threaded index on its own thread, which receives changes and queries as messages. Dropping the actor ends
/// the thread; unapplied changes are lost.
pub struct Actor<T: LocalDesign> {
    shared: Arc<ActorState<T>>,
    thread: Option<JoinHandle<()>>,
    /// Number of messages (changes, queries and answers) exchanged with the actor's thread so far.
    messages: AtomicU64,
}

struct ActorState<T> {
    mailbox: Mailbox<T>,
    broken: PanicMessage,
}

/// An answer to a query that the actor's thread has not sent yet.
struct Reply<R>(mpsc::Receiver<thread::Result<R>>);

impl<R> Reply<R> {
    fn wait(self) -> R {
        match self.0.recv() {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(mpsc::RecvError) => unreachable!("an actor answers for as long as somebody has it to ask"),
        }
    }
}

impl<T: LocalDesign> Actor<T> {
    /// Starts a thread that owns the index `design`.
    ///
    /// # Panics
    /// If the system starts no more threads, as [`std::thread::spawn`] does.
    #[must_use]
    pub fn new(design: T) -> Self {
        Self::try_new(design).expect("the system starts threads")
    }

    /// Starts a thread that owns the index `design`, like [`new`](Self::new), but returns the system's error instead of
    /// panicking.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn try_new(design: T) -> io::Result<Self> {
        let shared = Arc::new(ActorState { mailbox: Mailbox::new(), broken: PanicMessage::default() });
        let its = shared.clone();
        let thread = Builder::new().name("kv-actor".to_owned()).spawn(move || its.work(design))?;
        Ok(Self { shared, thread: Some(thread), messages: AtomicU64::new(0) })
    }

    /// Sends a query to the actor's thread. `question`: function of the index that computes the answer.
    fn ask<R: Send + 'static>(&self, question: impl FnOnce(&T) -> R + Send + 'static) -> Reply<R> {
        let (answer, reply) = mpsc::sync_channel(1);
        self.shared.mailbox.ask(Box::new(move |design| {
            // The caller may be gone.
            let _ = answer.send(catch_unwind(AssertUnwindSafe(|| question(design))));
        }));
        Reply(reply)
    }

    fn ask_scores(&self, query: Arc<[u64]>, mut scores: Scores) -> Reply<Scores> {
        self.messages.fetch_add(2, Ordering::Relaxed);
        self.ask(move |design| {
            design.find(&query, &mut scores);
            scores
        })
    }
}

impl<T: LocalDesign> ActorState<T> {
    fn work(&self, mut design: T) {
        self.mailbox.serve(&mut design, |design, change| {
            self.broken.catch(change, || {
                // The design counts its refusals.
                let _ = design.apply(change);
            });
        });
    }
}

impl<T: LocalDesign> Feed for Actor<T> {
    fn send(&self, change: Change) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.shared.mailbox.send(change);
    }

    fn applied(&self) -> u64 {
        self.shared.mailbox.applied()
    }

    fn flush(&self) {
        self.shared.mailbox.flush();
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        *scores = self.ask_scores(content_hashes.into(), std::mem::take(scores)).wait();
    }

    fn broken(&self) -> Option<String> {
        self.shared.broken.message()
    }

    fn stats(&self) -> LadderStats {
        self.flush();
        let stats = self.ask(T::stats).wait();
        LadderStats { messages: stats.messages + self.messages.load(Ordering::Relaxed), ..stats }
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        self.flush();
        self.ask(T::holdings).wait()
    }
}

impl<T: LocalDesign> Drop for Actor<T> {
    fn drop(&mut self) {
        self.shared.mailbox.close();
        if let Some(thread) = self.thread.take() {
            // It catches the panics of the design.
            let _ = thread.join();
        }
    }
}

/// Several actors, each with some of the workers. A worker is assigned to the next actor in turn on first use, and
/// never moved.
pub struct ShardedActors<T: LocalDesign> {
    sticky: StickyThreads,
    actors: Box<[Actor<T>]>,
}

impl<T: LocalDesign> ShardedActors<T> {
    /// Starts `shards` actors, at least one, each with an index created by `make`.
    ///
    /// # Panics
    /// If the system starts no more threads, as [`std::thread::spawn`] does.
    #[must_use]
    pub fn new(shards: usize, make: impl Fn() -> T) -> Self {
        Self::try_new(shards, make).expect("the system starts threads")
    }

    /// Starts several actors like [`new`](Self::new), but returns the system's error instead of panicking.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn try_new(shards: usize, make: impl Fn() -> T) -> io::Result<Self> {
        let shards = shards.max(1);
        let actors = (0..shards).map(|_| Actor::try_new(make())).collect::<io::Result<_>>()?;
        Ok(Self { sticky: StickyThreads::new(shards), actors })
    }
}

impl<T: LocalDesign> Feed for ShardedActors<T> {
    fn send(&self, change: Change) {
        self.actors[self.sticky.of(change.worker())].send(change);
    }

    fn applied(&self) -> u64 {
        self.actors.iter().map(Actor::applied).sum()
    }

    fn flush(&self) {
        self.actors.iter().for_each(Actor::flush);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        let query: Arc<[u64]> = content_hashes.into();
        let replies: Vec<_> = self.actors.iter().map(|actor| actor.ask_scores(query.clone(), Vec::new())).collect();
        scores.clear();
        // A worker is in one shard only.
        for reply in replies {
            scores.append(&mut reply.wait());
        }
    }

    fn broken(&self) -> Option<String> {
        self.actors.iter().find_map(Actor::broken)
    }

    fn stats(&self) -> LadderStats {
        self.actors.iter().map(Actor::stats).fold(LadderStats::default(), |all, one| LadderStats {
            workers: all.workers + one.workers,
            blocks: all.blocks + one.blocks,
            entries: all.entries + one.entries,
            refused: all.refused + one.refused,
            unknown_removals: all.unknown_removals + one.unknown_removals,
            messages: all.messages + one.messages,
        })
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let mut holdings: Vec<_> = self.actors.iter().flat_map(Actor::holdings).collect();
        holdings.sort_unstable();
        holdings
    }
}
