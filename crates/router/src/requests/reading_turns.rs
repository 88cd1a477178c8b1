//! Turns for reading long prompts: at most one per core at a time. Each thread that reads has a tokenizer's memory of
//! words, so more of them would be slower and larger.
//!
//! The next turn is that of the client of whose prompts the fewest are being read, and among its own that of the shortest.
//! The longest of all leave one of the turns to others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// Bytes of the prompts that leave a turn to others.
const LONGEST: usize = 1 << 20;

/// Extra time for work that cannot check the time limit itself.
const GRACE: Duration = Duration::from_millis(250);

/// Client of a turn, by its address.
pub(crate) type Client = Option<IpAddr>;

/// The reason why work had no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoResult {
    TookTooLong,
    Panicked,
}

/// The turns, and the work that waits for one.
pub(crate) struct ReadingTurns {
    all: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    taken: usize,
    /// Turns that the longest prompts have.
    longest: usize,
    /// Number of turns of each client that has any.
    by_client: HashMap<Client, usize>,
    waiting: Vec<Turn>,
}

/// Work that has a turn or waits for one.
struct Turn {
    client: Client,
    bytes: usize,
    work: Box<dyn FnOnce() + Send>,
    /// Set once the work begins; gone if nobody waits for the result any more.
    has_begun: Weak<AtomicBool>,
}

impl ReadingTurns {
    pub(crate) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all: all.max(1), state: Mutex::default() })
    }

    /// Runs work on a prompt of `bytes` bytes on another thread, when it is its turn. A thread that is done goes on with what
    /// waits, so that nothing is woken between two prompts.
    ///
    /// # Errors
    /// [`NoResult`] if it is not its turn until `until`, or the work takes much longer than until then, or panics.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        client: Client,
        bytes: usize,
        until: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let (tell, mut told) = oneshot::channel();
        let has_begun = Arc::new(AtomicBool::new(false));
        let work = Box::new(move || drop(tell.send(work())));
        self.begin_or_wait(Turn { client, bytes, work, has_begun: Arc::downgrade(&has_begun) });
        let mut done = timeout_at(until.into(), &mut told).await;
        if done.is_err() && has_begun.load(Relaxed) {
            done = timeout_at((until + GRACE).into(), told).await;
        }
        done.map_err(|_| NoResult::TookTooLong)?.map_err(|_| NoResult::Panicked)
    }

    fn begin_or_wait(self: &Arc<Self>, turn: Turn) {
        {
            let mut state = self.state.lock();
            if !self.may_begin(&state, turn.bytes) {
                state.waiting.push(turn);
                return;
            }
            state.begin(&turn);
        }
        let turns = self.clone();
        tokio::task::spawn_blocking(move || {
            let mut next = Some(turn);
            while let Some(Turn { client, bytes, work, has_begun }) = next {
                if let Some(has_begun) = has_begun.upgrade() {
                    has_begun.store(true, Relaxed);
                    // The panic is reported where it happens; who waits for the result learns of it.
                    let _ = std::panic::catch_unwind(AssertUnwindSafe(work));
                }
                next = turns.pass_on(client, bytes);
            }
        });
    }

    fn may_begin(&self, state: &State, bytes: usize) -> bool {
        let most_longest = (self.all - 1).max(1);
        state.taken < self.all && (bytes <= LONGEST || state.longest < most_longest)
    }

    /// Ends a turn, and returns the one that begins instead, if there is any.
    fn pass_on(&self, client: Client, bytes: usize) -> Option<Turn> {
        let mut state = self.state.lock();
        state.end(client, bytes);
        state.waiting.retain(|turn| turn.has_begun.strong_count() > 0);
        let due = state.waiting.iter().enumerate().filter(|(_, turn)| self.may_begin(&state, turn.bytes));
        let turns = |client: &Client| state.by_client.get(client).copied().unwrap_or(0);
        let (at, _) = due.min_by_key(|(_, turn)| (turns(&turn.client), turn.bytes))?;
        let turn = state.waiting.remove(at);
        state.begin(&turn);
        Some(turn)
    }
}

impl State {
    fn begin(&mut self, turn: &Turn) {
        self.taken += 1;
        self.longest += usize::from(turn.bytes > LONGEST);
        *self.by_client.entry(turn.client).or_default() += 1;
    }

    fn end(&mut self, client: Client, bytes: usize) {
        self.taken -= 1;
        self.longest -= usize::from(bytes > LONGEST);
        if let Some(turns) = self.by_client.get_mut(&client) {
            *turns -= 1;
            if *turns == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn client(number: u8) -> Client {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Occupies a turn until the sender is dropped.
    fn hold(turns: &Arc<ReadingTurns>, number: u8, bytes: usize) -> mpsc::Sender<()> {
        let (end, ended) = mpsc::channel::<()>();
        let begun = Arc::new(AtomicBool::new(false));
        let work = Box::new(move || {
            let _ = ended.recv();
        });
        turns.begin_or_wait(Turn { client: client(number), bytes, work, has_begun: Arc::downgrade(&begun) });
        while !begun.load(Relaxed) {
            std::thread::yield_now();
        }
        end
    }

    /// Lets `waiting` wait, in this order, while `held` has a turn. Returns the order in which they are read.
    async fn order(turns: &Arc<ReadingTurns>, held: mpsc::Sender<()>, waiting: &[(u8, usize)]) -> Vec<(u8, usize)> {
        let read = Arc::new(Mutex::new(Vec::new()));
        let mut all = tokio::task::JoinSet::new();
        for &(number, bytes) in waiting {
            let (turns, read) = (turns.clone(), read.clone());
            all.spawn(async move {
                let work = move || read.lock().push((number, bytes));
                turns.run(client(number), bytes, later(), work).await.expect("it is read");
            });
            tokio::task::yield_now().await;
        }
        drop(held);
        all.join_all().await;
        std::mem::take(&mut *read.lock())
    }

    #[tokio::test]
    async fn the_shortest_is_next() {
        let turns = ReadingTurns::new(1);
        let held = hold(&turns, 1, 10);
        let found = order(&turns, held, &[(1, 300), (2, 200), (1, 100), (2, 400)]).await;
        assert_eq!(found, [(1, 100), (2, 200), (1, 300), (2, 400)]);
        while turns.state.lock().taken > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(turns.state.lock().by_client.len(), 0);
    }

    #[tokio::test]
    async fn a_client_with_none_is_before_one_that_has_some() {
        let turns = ReadingTurns::new(2);
        let _other = hold(&turns, 1, 10);
        let held = hold(&turns, 1, 10);
        let found = order(&turns, held, &[(1, 100), (1, 200), (2, 300)]).await;
        assert_eq!(found, [(2, 300), (1, 100), (1, 200)]);
    }

    #[tokio::test]
    async fn the_longest_leave_a_turn_to_others() {
        let (turns, now) = (ReadingTurns::new(2), Instant::now());
        let _long = hold(&turns, 1, LONGEST + 1);
        assert_eq!(turns.run(client(2), LONGEST + 1, now, || ()).await, Err(NoResult::TookTooLong));
        assert_eq!(turns.run(client(1), LONGEST, later(), || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_and_a_client_that_has_left_cost_no_turn() {
        let turns = ReadingTurns::new(1);
        let held = hold(&turns, 1, 10);
        let ran = Arc::new(AtomicBool::new(false));
        let gone = turns.run(client(1), 10, Instant::now(), {
            let ran = ran.clone();
            move || ran.store(true, Relaxed)
        });
        assert_eq!(gone.await, Err(NoResult::TookTooLong));
        drop(held);
        let panics = turns.run(client(1), 10, later(), || -> u8 { panic!("a fault") });
        assert_eq!(panics.await, Err(NoResult::Panicked));
        assert_eq!(turns.run(client(1), 10, later(), || 7).await, Ok(7));
        assert!(!ran.load(Relaxed), "work that nobody waits for is not done");
    }
}
