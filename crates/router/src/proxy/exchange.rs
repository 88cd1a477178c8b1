//! A request and the head of its answer, on a connection to an engine.

use hyper::Method;

use crate::app::App;
use crate::engine::{Connection, Engine, Fault, Head};

/// Sends the request, reads the head of the answer. A connection that was closed while it waited is replaced by a new
/// one, once: that says nothing of the engine.
pub(crate) async fn exchange(
    app: &App,
    engine: &Engine,
    shard: usize,
    head: &[u8],
    body: &[u8],
    method: &Method,
) -> Result<(Connection, Head), Fault> {
    let first_byte = app.config.upstream.first_byte_timeout;
    let connection = engine.connection(shard).await?;
    let answered = tokio::time::timeout(first_byte, ask(connection, head, body, method)).await;
    match answered.unwrap_or(Err(Fault::FirstByte)) {
        Err(Fault::Stale) => {}
        answered => return answered,
    }
    engine.pool.clear_shard(shard);
    let connection = engine.new_connection().await?;
    let answered = tokio::time::timeout(first_byte, ask(connection, head, body, method)).await;
    answered.unwrap_or(Err(Fault::FirstByte))
}

async fn ask(
    mut connection: Connection,
    head: &[u8],
    body: &[u8],
    method: &Method,
) -> Result<(Connection, Head), Fault> {
    // An engine that refuses a long body may answer and close before it has read all of it.
    let sent = connection.send(head, body).await;
    let mut answer = connection.head(method).await?;
    answer.keep &= sent.is_ok();
    Ok((connection, answer))
}
