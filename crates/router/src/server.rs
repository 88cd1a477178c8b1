//! The router's side of the HTTP server.

use std::sync::Arc;

use hyper::{Request, Response};
use kvatlas_http::{Call, Denial, Front, Handler, RequestBody};

use crate::answers::body::Answer;
use crate::answers::observe::Dialect;
use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::dispatch;

impl Handler for App {
    type Body = Answer;

    const HTTP2: bool = true;

    /// True, as an engine's time is dear.
    const LATE_END_IS_LEAVING: bool = true;

    fn front(&self) -> &Front {
        &self.front
    }

    fn answer(
        app: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Answer>> + Send + 'static {
        // In a place of its own: it is large, and gone when the head of the answer is here, while hyper keeps its place for
        // as long as the connection is open.
        Box::pin(dispatch::answer(app, call, request))
    }

    fn refuse(denied: Denial) -> Response<Answer> {
        // The path has not been read.
        Refusal::from(denied).response(Dialect::Other)
    }
}
