//! Web page of the router: its files, its live contents, and one decision in detail.
//!
//! * `shown`: contents of the page, computed once a second while a browser shows the page.

mod shown;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use kvatlas_follow::page::Page;
use kvatlas_ui::{Asset, Viewer};

use crate::answers::refusal::Refusal;
use crate::answers::{Answer, BodyError, json, typed};
use crate::placing::Places;

pub(crate) use self::shown::run;

/// Answers with a file of the web page. Headers make browsers neither show the page within other pages nor load
/// anything from other servers for it.
pub(crate) fn file(asset: Asset) -> Response<Answer> {
    let mut response = typed(StatusCode::OK, asset.media_type, asset.bytes);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(kvatlas_ui::CONTENT_SECURITY_POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // A router that was replaced serves another page.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Answers with the event stream that updates the web page in a browser.
pub(crate) fn events(page: &Page) -> Result<Response<Answer>, Refusal> {
    let viewer = page.watch().map_err(|full| {
        let message = format!("{} pages are already open, which is the maximum; close one", full.viewers);
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_viewers", message)
    })?;
    let mut response = typed(StatusCode::OK, "text/event-stream", Bytes::new());
    *response.body_mut() = Answer::Stream(Box::pin(ViewerStream(viewer)));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that keep answers back until there is enough of them: nginx reads this.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// Answers with one routing decision in detail; the query is `number=N`.
pub(crate) fn decision(places: &Places, query: Option<&str>) -> Result<Response<Answer>, Refusal> {
    let number = query.and_then(|query| query.strip_prefix("number=")?.parse().ok());
    let number: u64 =
        number.ok_or_else(|| Refusal::bad("missing_number", "add ?number=N, the number of a decision"))?;
    let all = places.decisions.last(usize::MAX);
    let found = all.iter().find(|record| record.number == number).ok_or_else(Refusal::unknown_path)?;
    Ok(json(StatusCode::OK, shown::whole(found, places.policy()).to_string()))
}

/// Body of an answer with the event stream for one browser that shows the web page.
struct ViewerStream(Viewer);

impl Body for ViewerStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.get_mut().0.poll_next(context).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
