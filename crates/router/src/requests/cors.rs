//! Cross-origin access (CORS) for web pages of the origins in the setting `http.origins`. CORS headers of engines are
//! not forwarded.

use hyper::Response;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, ALLOW, HeaderMap,
    HeaderValue, ORIGIN, VARY,
};
use kvatlas_http::Gate;

use crate::answers::Answer;
use crate::requests::routes::Methods;

/// Time, in seconds, for which a browser may cache the answer to a preflight request.
const MAX_AGE: u32 = 600;

/// Returns the origin of a request if the origin's pages may read answers, else None.
pub(crate) fn origin(headers: &HeaderMap, allowed: &[String]) -> Option<HeaderValue> {
    if allowed.is_empty() {
        return None;
    }
    let origin = headers.get(ORIGIN)?;
    allowed.iter().any(|allowed| origin.as_bytes().eq_ignore_ascii_case(allowed.as_bytes())).then(|| origin.clone())
}

/// Answers an OPTIONS request for a path that accepts the methods `methods`.
pub(crate) fn options(methods: Methods, headers: &HeaderMap, allowed: &[String], gate: &Gate) -> Response<Answer> {
    let mut response = Response::new(Answer::Full(Default::default()));
    let list = HeaderValue::try_from(methods.list() + ", OPTIONS").ok();
    let told = response.headers_mut();
    if origin(headers, allowed).is_some() {
        told.extend(list.clone().map(|list| (ACCESS_CONTROL_ALLOW_METHODS, list)));
        // All are passed on, or are nothing to the router.
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
        let wanted = wanted.filter(|names| !gate.has_key_in_name(names.as_bytes()));
        told.extend(wanted.map(|wanted| (ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone())));
        told.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE.into());
    }
    told.extend(list.map(|list| (ALLOW, list)));
    response
}

/// Adds the headers to an answer that permit web pages of an origin to read it.
pub(crate) fn let_read(response: &mut Response<Answer>, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    headers.append(VARY, HeaderValue::from_static("Origin"));
}
