//! Work on bodies that takes long, on threads beside those that serve.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;

use crate::answers::refusal::Refusal;
use crate::app::App;

/// Bytes beyond which a body is parsed aside: about a millisecond.
pub(crate) const LONG_BODY: usize = 512 << 10;

/// Bytes of a body that takes no time to parse, whatever is in it.
const SHORT_BODY: usize = 16 << 10;

/// Objects and lists of a body beyond which it is parsed aside: each can take a microsecond where values are made of it.
const MANY: usize = 2_000;

/// True if it may take a millisecond or more to parse a body. Braces within texts count as well, so that it takes only a
/// moment to know.
pub(crate) fn takes_long(body: &[u8]) -> bool {
    let count = |byte| memchr::memchr_iter(byte, body).count();
    body.len() > LONG_BODY || body.len() > SHORT_BODY && count(b'{') + count(b'[') > MANY
}

/// Runs `work` on a body, on a thread beside those that serve. As many as there are cores work at once; the others wait
/// for their turn.
pub(crate) async fn aside<T: Send + 'static>(
    app: &Arc<App>,
    body: &Bytes,
    work: impl FnOnce(&App, &[u8]) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let turn = app.prompts.turn().await;
    let (app, body) = (app.clone(), body.clone());
    let work = tokio::task::spawn_blocking(move || {
        let done = work(&app, &body);
        drop(turn);
        done
    });
    work.await.map_err(|_| failed())
}

/// Runs `work` like [`aside`], but on this thread if the body is short.
pub(crate) async fn aside_if_long<T: Send + 'static>(
    app: &Arc<App>,
    body: &Bytes,
    work: impl FnOnce(&App, &[u8]) -> T + Send + 'static,
) -> Result<T, Refusal> {
    if takes_long(body) { aside(app, body, work).await } else { Ok(work(app, body)) }
}

/// The refusal of a request whose work met a panic.
pub(crate) fn failed() -> Refusal {
    let message = "internal error; the router's log has the details";
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long() {
        assert!(takes_long(&vec![b' '; LONG_BODY + 1]));
        assert!(!takes_long(&vec![b'a'; LONG_BODY]));
        assert!(!takes_long("{},".repeat(MANY).as_bytes()), "no more than a moment");
        assert!(takes_long("{\"a\": []}, ".repeat(MANY).as_bytes()));
    }
}
