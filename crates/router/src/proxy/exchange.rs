//! A request and the head of its answer, on a connection to an engine.

use std::pin::pin;
use std::time::{Duration, Instant};

use hyper::Method;
use tokio::time::timeout_at;

use crate::app::App;
use crate::engines::{Connection, Engine, Fault, Head};

/// Sends the request, reads the head of the answer. A kept connection that was closed before anything was sent on it is
/// replaced by a new one: that says nothing of the engine. `fresh`: only a new one will do.
pub(crate) async fn exchange(
    app: &App,
    engine: &Engine,
    shard: usize,
    head: &[u8],
    body: &[u8],
    method: &Method,
    fresh: bool,
) -> Result<(Connection, Head), Fault> {
    if !fresh {
        let answered = ask(app, engine, engine.connection(shard).await?, head, body, method).await;
        if matches!(answered, Err(Fault::Stale | Fault::Unsent)) {
            // Those that have waited as long are not better.
            engine.pool.clear_shard(shard);
        }
        if !matches!(answered, Err(Fault::Unsent)) {
            return answered;
        }
    }
    ask(app, engine, engine.new_connection().await?, head, body, method).await
}

async fn ask(
    app: &App,
    engine: &Engine,
    mut connection: Connection,
    head: &[u8],
    body: &[u8],
    method: &Method,
) -> Result<(Connection, Head), Fault> {
    let answer = Patience::new(app, engine).wait(connection.ask(head, body, method)).await?;
    Ok((connection, answer))
}

/// For so long nobody looks how the engine does: most have answered by then.
const SHORT: Duration = Duration::from_secs(1);

/// The wait for the first byte of an engine's answer: it ends when the time is over, or when the engine goes down.
pub(crate) struct Patience<'a> {
    engine: &'a Engine,
    until: Instant,
    downs: u32,
}

impl<'a> Patience<'a> {
    /// Begins the wait.
    pub(crate) fn new(app: &App, engine: &'a Engine) -> Self {
        let until = Instant::now() + app.config.upstream.first_byte_timeout;
        Self { engine, until, downs: engine.health.downs() }
    }

    /// Returns what comes of `work`, or why it is not waited for any longer.
    pub(crate) async fn wait<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let mut work = pin!(work);
        let short = self.until.min(Instant::now() + SHORT);
        if let Ok(done) = timeout_at(short.into(), work.as_mut()).await {
            return done;
        }
        tokio::select! {
            biased;
            done = timeout_at(self.until.into(), work) => done.unwrap_or(Err(Fault::FirstByte)),
            () = self.engine.health.is_down_since(self.downs) => Err(Fault::Down),
        }
    }
}
