//! The service as a handler of the HTTP server.

use std::sync::Arc;

use hyper::{Request, Response};
use kvatlas_http::{Call, Denial, Front, Handler, RequestBody, Server, Threads};

use crate::answer::Answer;
use crate::app::App;
use crate::dispatch;
use crate::page;
use crate::refusal::Refusal;

impl Handler for App {
    type Body = Answer;

    const HTTP2: bool = false;

    /// Answers are made at once.
    const HALF_CLOSE: bool = true;

    fn front(&self) -> &Front {
        &self.front
    }

    fn answer(
        app: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Answer>> + Send + 'static {
        dispatch::answer(app, call, request)
    }

    fn refuse(denied: Denial) -> Response<Answer> {
        Refusal::from(denied).response()
    }
}

/// Starts the HTTP server.
pub(crate) fn start(app: &Arc<App>) -> Result<Server, kvatlas_http::Error> {
    let server = Server::start(app, Threads::Shared(app.front.threads()))?;
    if let Some(threads) = server.handle() {
        let (watching, shown, beating) = (app.gate.clone(), app.clone(), app.clone());
        threads.spawn(async move { watching.watch().await });
        threads.spawn(page::run(shown));
        threads.spawn(async move { beating.pulses.http.beat().await });
    }
    Ok(server)
}
