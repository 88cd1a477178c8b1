//! Turns for reading long prompts: at most one per core at a time. Each thread that reads has a tokenizer's memory of
//! words, so more of them would be slower and larger.
//!
//! The next turn is that of the client of whose prompts the fewest are being read, and among its own that of the shortest.
//! The longest of all leave one of the turns to others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// Bytes of the prompts that leave a turn to others.
const LONGEST: usize = 1 << 20;

/// Client of a turn, by its address.
pub(crate) type Client = Option<IpAddr>;

/// The turns, and who waits for one.
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
    waiting: Vec<Waiter>,
}

struct Waiter {
    client: Client,
    bytes: usize,
    tell: oneshot::Sender<ReadingTurn>,
}

/// A turn, until this is dropped.
pub(crate) struct ReadingTurn {
    turns: Arc<ReadingTurns>,
    client: Client,
    bytes: usize,
}

impl ReadingTurns {
    pub(crate) fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all: all.max(1), state: Mutex::default() })
    }

    /// Waits for a turn to read a prompt of `bytes` bytes. None if there is none until then.
    pub(crate) async fn wait(self: &Arc<Self>, client: Client, bytes: usize, until: Instant) -> Option<ReadingTurn> {
        let told = {
            let mut state = self.state.lock();
            if self.may_begin(&state, bytes) {
                state.begin(client, bytes);
                return Some(ReadingTurn { turns: self.clone(), client, bytes });
            }
            let (tell, told) = oneshot::channel();
            state.waiting.push(Waiter { client, bytes, tell });
            told
        };
        timeout_at(until.into(), told).await.ok()?.ok()
    }

    fn may_begin(&self, state: &State, bytes: usize) -> bool {
        let most_longest = (self.all - 1).max(1);
        state.taken < self.all && (bytes <= LONGEST || state.longest < most_longest)
    }

    /// Gives a free turn to one who waits.
    fn next(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.waiting.retain(|waiter| !waiter.tell.is_closed());
        let due = state.waiting.iter().enumerate().filter(|(_, waiter)| self.may_begin(&state, waiter.bytes));
        let turns = |client: &Client| state.by_client.get(client).copied().unwrap_or(0);
        let Some((at, _)) = due.min_by_key(|(_, waiter)| (turns(&waiter.client), waiter.bytes)) else { return };
        let Waiter { client, bytes, tell } = state.waiting.remove(at);
        state.begin(client, bytes);
        drop(state);
        // Whoever has left meanwhile gives it back, as it is dropped.
        let _ = tell.send(ReadingTurn { turns: self.clone(), client, bytes });
    }
}

impl State {
    fn begin(&mut self, client: Client, bytes: usize) {
        self.taken += 1;
        self.longest += usize::from(bytes > LONGEST);
        *self.by_client.entry(client).or_default() += 1;
    }
}

impl Drop for ReadingTurn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.state.lock();
            state.taken -= 1;
            state.longest -= usize::from(self.bytes > LONGEST);
            if let Some(turns) = state.by_client.get_mut(&self.client) {
                *turns -= 1;
                if *turns == 0 {
                    state.by_client.remove(&self.client);
                }
            }
        }
        self.turns.next();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn client(number: u8) -> Client {
        Some(IpAddr::from([10, 0, 0, number]))
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Lets `waiting` wait, in this order, while `held` has all turns. Returns who is next each time that one is done.
    async fn order(turns: &Arc<ReadingTurns>, held: ReadingTurn, waiting: &[(u8, usize)]) -> Vec<(u8, usize)> {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for &(number, bytes) in waiting {
            let (turns, tell) = (turns.clone(), tell.clone());
            tokio::spawn(async move {
                let turn = turns.wait(client(number), bytes, later()).await.expect("a turn");
                tell.send((number, bytes, turn)).ok();
            });
            tokio::task::yield_now().await;
        }
        drop((tell, held));
        let mut found = Vec::new();
        while let Some((number, bytes, turn)) = told.recv().await {
            found.push((number, bytes));
            drop(turn);
        }
        found
    }

    #[tokio::test]
    async fn the_shortest_is_next() {
        let turns = ReadingTurns::new(1);
        let held = turns.wait(client(1), 10, later()).await.expect("a turn");
        let found = order(&turns, held, &[(1, 300), (2, 200), (1, 100), (2, 400)]).await;
        assert_eq!(found, [(1, 100), (2, 200), (1, 300), (2, 400)]);
        assert_eq!(turns.state.lock().by_client.len(), 0);
    }

    #[tokio::test]
    async fn a_client_with_none_is_before_one_that_has_some() {
        let turns = ReadingTurns::new(2);
        let _other = turns.wait(client(1), 10, later()).await.expect("a turn");
        let held = turns.wait(client(1), 10, later()).await.expect("a turn");
        let found = order(&turns, held, &[(1, 100), (1, 200), (2, 300)]).await;
        assert_eq!(found, [(2, 300), (1, 100), (1, 200)]);
    }

    #[tokio::test]
    async fn the_longest_leave_a_turn_to_others() {
        let (turns, now) = (ReadingTurns::new(2), Instant::now());
        let long = turns.wait(client(1), LONGEST + 1, now).await.expect("a turn");
        assert!(turns.wait(client(2), LONGEST + 1, now).await.is_none());
        let short = turns.wait(client(1), LONGEST, now).await.expect("a turn");
        assert!(turns.wait(client(2), 1, now).await.is_none());
        drop((long, short));
        assert_eq!(turns.state.lock().taken, 0);
        assert!(turns.wait(client(2), LONGEST + 1, now).await.is_some());
    }
}
