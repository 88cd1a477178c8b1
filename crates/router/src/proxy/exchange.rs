//! Sending of a request to an engine, and reading of the head of its answer.

use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use hyper::Method;
use tokio::time::timeout_at;

use crate::engines::{Connection, Engine, Fault, Head};

/// Sends a request and reads the head of its answer. An idle connection that was closed before anything was sent on it
/// is replaced by a new one, without counting a failure. `first_byte`: time limit for the first byte of the answer;
/// `fresh`: true if a new connection is required.
pub(crate) async fn exchange(
    first_byte: Duration,
    engine: &Engine,
    shard: usize,
    head: &[u8],
    body: &[u8],
    method: &Method,
    fresh: bool,
) -> Result<(Connection, Head), Fault> {
    if !fresh {
        let answered = ask(first_byte, engine, engine.connection(shard).await?, head, body, method).await;
        if matches!(answered, Err(Fault::Stale | Fault::Unsent)) {
            // Those that have waited as long are not better.
            engine.pool.clear_shard(shard);
        }
        if !matches!(answered, Err(Fault::Unsent)) {
            return answered;
        }
    }
    ask(first_byte, engine, Box::pin(engine.new_connection()).await?, head, body, method).await
}

async fn ask(
    first_byte: Duration,
    engine: &Engine,
    mut connection: Connection,
    head: &[u8],
    body: &[u8],
    method: &Method,
) -> Result<(Connection, Head), Fault> {
    let patience = Patience::new(first_byte, engine);
    let answer = patience.wait(pin!(connection.ask(head, body, method))).await?;
    Ok((connection, answer))
}

/// Wait for the first byte of an engine's answer, which ends when the time is up or the engine goes down.
pub(crate) struct Patience<'a> {
    engine: &'a Engine,
    until: Instant,
    downs: u32,
}

impl<'a> Patience<'a> {
    /// Starts the wait for the first byte of the answer of `engine`. The wait lasts at most for the time `first_byte`.
    pub(crate) fn new(first_byte: Duration, engine: &'a Engine) -> Self {
        let until = Instant::now() + first_byte;
        Self { engine, until, downs: engine.health.downs() }
    }

    /// Returns the result of `work`, or the fault that ended the wait. The caller pins `work` so that this future only
    /// refers to it and stays small, as futures are moved in memory for every request.
    pub(crate) async fn wait<T>(&self, work: Pin<&mut impl Future<Output = Result<T, Fault>>>) -> Result<T, Fault> {
        // One timer, which is later than most others: the first one due has to wake the thread's event loop to be set.
        tokio::select! {
            biased;
            done = timeout_at(self.until.into(), work) => done.unwrap_or(Err(Fault::FirstByte)),
            () = self.engine.health.is_down_since(self.downs) => Err(Fault::Down),
        }
    }
}
