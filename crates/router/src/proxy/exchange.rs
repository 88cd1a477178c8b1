//! A request and the head of its answer, on a connection to an engine.

use hyper::Method;

use crate::app::App;
use crate::engine::{Connection, Engine, Fault, Head};

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
        let answered = ask(app, engine.connection(shard).await?, head, body, method).await;
        if matches!(answered, Err(Fault::Stale | Fault::Unsent)) {
            // Those that have waited as long are not better.
            engine.pool.clear_shard(shard);
        }
        if !matches!(answered, Err(Fault::Unsent)) {
            return answered;
        }
    }
    ask(app, engine.new_connection().await?, head, body, method).await
}

async fn ask(
    app: &App,
    mut connection: Connection,
    head: &[u8],
    body: &[u8],
    method: &Method,
) -> Result<(Connection, Head), Fault> {
    let asked = tokio::time::timeout(app.config.upstream.first_byte_timeout, connection.ask(head, body, method)).await;
    let answer = asked.unwrap_or(Err(Fault::FirstByte))?;
    Ok((connection, answer))
}
