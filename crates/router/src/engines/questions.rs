//! Requests of the router itself to an engine, such as for its models or metrics, each on a separate connection.

use std::sync::atomic::Ordering::Relaxed;

use super::{Connection, Engine, Fault, Framing, Head};

/// Maximum size, in bytes, of an engine's answer that the router reads completely: the answer to a forwarded request,
/// or to a question about a prompt, whose tokens can have megabytes.
const MAX_ANSWER: usize = 16 << 20;

/// Maximum size of an engine's short answer with information about itself, in bytes.
pub(crate) const SHORT: usize = 256 << 10;

/// Maximum size, in bytes, of an engine's list with information about itself. The limit suffices for a thousand
/// adapters of vLLM, or the settings of each rank of SGLang.
pub(crate) const LIST: usize = 1 << 20;

/// Maximum size of an engine's metrics, in bytes.
const METRICS: usize = 16 << 20;
/// Maximum length of a line of an engine's metrics, in bytes.
const LINE: usize = 16 << 10;

/// Sends a GET request to an engine; returns the status and the body of the answer. `most`: maximum size of the body,
/// in bytes.
pub(crate) async fn get(engine: &Engine, path: &str, most: usize) -> Result<(u16, Vec<u8>), String> {
    let (connection, answer) = begin(engine, hyper::Method::GET, path, b"").await.map_err(|fault| fault.to_string())?;
    let mut body = Vec::new();
    read(engine, connection, answer.framing, most, |piece| body.extend_from_slice(piece)).await?;
    Ok((answer.status.as_u16(), body))
}

/// Sends a GET request to an engine; returns the status, and calls `see` with each line of the body if the status is
/// 200.
pub(crate) async fn lines(engine: &Engine, path: &str, mut see: impl FnMut(&str)) -> Result<u16, String> {
    let (connection, answer) = begin(engine, hyper::Method::GET, path, b"").await.map_err(|fault| fault.to_string())?;
    let status = answer.status.as_u16();
    if status != 200 {
        return Ok(status);
    }
    let mut lines = Lines::default();
    read(engine, connection, answer.framing, METRICS, |piece| lines.add(piece, &mut see)).await?;
    lines.end(&mut see);
    if lines.left_out > 0 {
        engine.counts.oversized.fetch_add(lines.left_out, Relaxed);
    }
    Ok(status)
}

/// Sends a GET request to an engine; returns only the status of the answer.
pub(crate) async fn status(engine: &Engine, path: &str) -> Result<u16, Fault> {
    let (_, answer) = begin(engine, hyper::Method::GET, path, b"").await?;
    Ok(answer.status.as_u16())
}

/// Sends a request with a JSON body to an engine; returns the status and the body of the answer.
pub(crate) async fn ask(engine: &Engine, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), String> {
    let method = hyper::Method::from_bytes(method.as_bytes()).map_err(|error| error.to_string())?;
    let (connection, answer) = begin(engine, method, path, body).await.map_err(|fault| fault.to_string())?;
    let (_, body) = whole(connection, answer.framing).await?;
    Ok((answer.status.as_u16(), body))
}

/// Sends a request to an engine; returns the connection and the head of the answer, whose body is not read yet.
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

/// Reads an answer's body of at most `most` bytes, and calls `see` with each piece. A longer body is an error and
/// counted in the engine's counters.
async fn read(
    engine: &Engine,
    mut connection: Connection,
    mut framing: Framing,
    most: usize,
    mut see: impl FnMut(&[u8]),
) -> Result<(), String> {
    let mut length = 0;
    while let Some(data) = std::future::poll_fn(|context| connection.poll_data(context, &mut framing)).await {
        let data = data.map_err(|fault| fault.to_string())?;
        length += data.len();
        if length > most {
            engine.counts.oversized.fetch_add(1, Relaxed);
            return Err(format!("its answer has more than {most} bytes"));
        }
        see(&data);
    }
    Ok(())
}

/// Reads an answer's body completely; returns the connection with the body, for reuse.
pub(crate) async fn whole(mut connection: Connection, mut framing: Framing) -> Result<(Connection, Vec<u8>), String> {
    let mut body = Vec::new();
    while let Some(data) = std::future::poll_fn(|context| connection.poll_data(context, &mut framing)).await {
        body.extend_from_slice(&data.map_err(|fault| fault.to_string())?);
        if body.len() > MAX_ANSWER {
            return Err(format!("its answer has more than {MAX_ANSWER} bytes"));
        }
    }
    Ok((connection, body))
}

/// Splitter of text that arrives in pieces into lines. Lines that are too long are dropped.
#[derive(Default)]
struct Lines {
    open: Vec<u8>,
    skips: bool,
    left_out: u64,
}

impl Lines {
    fn add(&mut self, piece: &[u8], see: &mut impl FnMut(&str)) {
        let mut rest = piece;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            self.go_on(&rest[..at]);
            self.end(see);
            rest = &rest[at + 1..];
        }
        self.go_on(rest);
    }

    fn go_on(&mut self, part: &[u8]) {
        self.skips |= self.open.len() + part.len() > LINE;
        if !self.skips {
            self.open.extend_from_slice(part);
        }
    }

    fn end(&mut self, see: &mut impl FnMut(&str)) {
        if self.skips {
            self.left_out += 1;
        } else {
            see(&String::from_utf8_lossy(&self.open));
        }
        self.open.clear();
        self.skips = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_however_they_are_cut() {
        let long = "x".repeat(LINE + 1);
        let text = format!("a 1\n\n{long}\nb 2\r\n{}\nlast", &long[1..]);
        for cut in [1, 2, 7, 1000, text.len()] {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            let mut see = |line: &str| seen.push(line.to_owned());
            text.as_bytes().chunks(cut).for_each(|piece| lines.add(piece, &mut see));
            lines.end(&mut see);
            assert_eq!(seen, ["a 1", "", "b 2\r", &long[1..], "last"], "pieces of {cut}");
            assert_eq!(lines.left_out, 1);
        }
    }
}
