//! Connections kept for the next request: a stack for each thread that serves, as a socket belongs to the thread that
//! waits for it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Connection;

/// The idle connections to one engine.
pub(crate) struct Pool {
    shards: Box<[Mutex<VecDeque<Connection>>]>,
    most: usize,
    idle: Duration,
}

impl Pool {
    pub(crate) fn new(shards: usize, most: usize, idle: Duration) -> Self {
        Self { shards: (0..shards).map(|_| Mutex::default()).collect(), most, idle }
    }

    /// Takes the connection that was used last, if it still can be used.
    pub(crate) fn take(&self, shard: usize) -> Option<Connection> {
        let mut connections = self.shards.get(shard)?.lock();
        while let Some(mut connection) = connections.pop_back() {
            if connection.idle_since.elapsed() > self.idle {
                // Those below are older.
                connections.clear();
                return None;
            }
            if connection.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection on which nothing runs.
    pub(crate) fn put(&self, shard: usize, mut connection: Connection) {
        let Some(shard) = self.shards.get(shard) else { return };
        connection.idle_since = Instant::now();
        let mut connections = shard.lock();
        if connections.len() < self.most {
            connections.push_back(connection);
        }
    }

    /// Closes the connections that have waited too long. Returns how many are left.
    pub(crate) fn sweep(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| {
                let mut connections = shard.lock();
                while connections.front().is_some_and(|first| first.idle_since.elapsed() > self.idle) {
                    connections.pop_front();
                }
                connections.len()
            })
            .sum()
    }

    /// Closes the connections of a thread.
    pub(crate) fn clear_shard(&self, shard: usize) {
        if let Some(shard) = self.shards.get(shard) {
            shard.lock().clear();
        }
    }

    /// Closes all connections.
    pub(crate) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }
}
