//! Questions of the router's own to an engine, each on a connection of its own.

use super::{Connection, Engine, Fault, Framing, Head};

/// The longest answer of an engine to a question of the router's own.
const MAX_ANSWER: usize = 16 << 20;

/// The status and body of what an engine answers to a question of the router's own.
pub(crate) async fn get(engine: &Engine, path: &str) -> Result<(u16, Vec<u8>), String> {
    ask(engine, "GET", path, b"").await
}

/// The status that an engine answers with to a question of the router's own.
pub(crate) async fn status(engine: &Engine, path: &str) -> Result<u16, Fault> {
    let (_, answer) = begin(engine, hyper::Method::GET, path, b"").await?;
    Ok(answer.status.as_u16())
}

/// The status and body of what an engine answers to a question by any method, with a body in JSON.
pub(crate) async fn ask(engine: &Engine, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), String> {
    let method = hyper::Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
    let (connection, answer) = begin(engine, method, path, body).await.map_err(|fault| fault.to_string())?;
    let (_, body) = whole(connection, answer.framing).await?;
    Ok((answer.status.as_u16(), body))
}

/// The head of what an engine answers to a question, and the connection on which its body comes.
async fn begin(engine: &Engine, method: hyper::Method, path: &str, body: &[u8]) -> Result<(Connection, Head), Fault> {
    let mut connection = engine.new_connection().await?;
    let key = engine.authorization.as_ref().map_or(String::new(), |key| format!("authorization: {key}\r\n"));
    let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
    let head = format!(
        "{method} {}{path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{key}{kind}content-length: {}\r\n\r\n",
        engine.address.base,
        engine.address.authority,
        body.len()
    );
    let answer = connection.ask(head.as_bytes(), body, &method).await?;
    Ok((connection, answer))
}

/// All of a body, and the connection on which it came.
pub(crate) async fn whole(mut connection: Connection, mut framing: Framing) -> Result<(Connection, Vec<u8>), String> {
    let mut body = Vec::new();
    while let Some(data) = std::future::poll_fn(|context| connection.poll_data(context, &mut framing)).await {
        body.extend_from_slice(&data.map_err(|fault| fault.to_string())?);
        if body.len() > MAX_ANSWER {
            return Err("its answer is too long".to_owned());
        }
    }
    Ok((connection, body))
}
