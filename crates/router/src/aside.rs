//! Work on bodies that takes long, on threads beside those that serve.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;

use crate::app::App;
use crate::refusal::Refusal;

/// Bytes beyond which a body is parsed aside: about a millisecond.
pub(crate) const LONG_BODY: usize = 512 << 10;

/// Runs `work` on a body, on a thread beside those that serve. As many as there are cores work at once; the others wait
/// for their turn.
pub(crate) async fn aside<T: Send + 'static>(
    app: &Arc<App>,
    body: &Bytes,
    work: impl FnOnce(&App, &[u8]) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let _turn = app.prompts.turn().await;
    let (app, body) = (app.clone(), body.clone());
    tokio::task::spawn_blocking(move || work(&app, &body)).await.map_err(|_| {
        let message = "internal error; the router's log has the details";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })
}

/// Runs `work` like [`aside`], but on this thread if the body is short.
pub(crate) async fn aside_if_long<T: Send + 'static>(
    app: &Arc<App>,
    body: &Bytes,
    work: impl FnOnce(&App, &[u8]) -> T + Send + 'static,
) -> Result<T, Refusal> {
    if body.len() <= LONG_BODY { Ok(work(app, body)) } else { aside(app, body, work).await }
}
