//! Identifiers by which other systems know a request: its id and its W3C trace context. They are returned with the
//! answer and written to the access log.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};
use kvatlas_http::Gate;
use xxhash_rust::xxh3::xxh3_64;

use crate::routes::Route;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Maximum length of a request's id, in bytes.
const MAX_ID: usize = 128;

/// Identifiers of one request, as sent in its headers.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    id: Option<HeaderValue>,
    parent: Option<HeaderValue>,
    /// Method of the request; `None` if the request is not written to the access log.
    method: Option<Method>,
}

impl Trace {
    /// Reads the identifiers that the client sent, if valid. `logged` is true if the request is written to the access
    /// log; it then gets an id if it has none.
    pub(crate) fn of<B>(request: &Request<B>, logged: bool, gate: &Gate) -> Self {
        let headers = request.headers();
        let read = |name: HeaderName, is_good: fn(&[u8]) -> bool| {
            read(headers, &name, |value| is_good(value) && !gate.has_key_in(value))
        };
        let id = read(REQUEST_ID, is_id).or_else(|| logged.then(new_id));
        Self { id, parent: read(TRACEPARENT, is_traceparent), method: logged.then(|| request.method().clone()) }
    }

    /// Adds the identifiers to the answer's headers, and writes a line to the access log if the request is to be
    /// logged.
    pub(crate) fn answered<B>(self, route: Route, response: &mut Response<B>, took: Duration) {
        if let Some(method) = &self.method {
            let text =
                |value: &Option<HeaderValue>| value.as_ref().and_then(|value| value.to_str().ok()).map(str::to_owned);
            let parent = text(&self.parent);
            // No free text of a client is logged: paths are those of routes, and ids consist of visible characters.
            tracing::info!(
                method = standard(method),
                path = route.path(),
                status = response.status().as_u16(),
                microseconds = took.as_micros() as u64,
                request_id = text(&self.id),
                trace_id = parent.as_deref().map(|parent| &parent[3..35]),
                "request"
            );
        }
        let headers = response.headers_mut();
        for (name, value) in [(REQUEST_ID, self.id), (TRACEPARENT, self.parent)] {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
    }
}

fn read(headers: &HeaderMap, name: &HeaderName, is_good: impl Fn(&[u8]) -> bool) -> Option<HeaderValue> {
    // Without headers of its own a request costs only two look-ups.
    headers.get(name).filter(|value| is_good(value.as_bytes())).cloned()
}

fn is_id(id: &[u8]) -> bool {
    (1..=MAX_ID).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// True for a valid W3C `traceparent` header: `00-`, trace id, `-`, parent id, `-` and flags, in lower-case
/// hexadecimal, with ids that are not all zero.
fn is_traceparent(value: &[u8]) -> bool {
    let hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let id = |part: &[u8]| hex(part) && part.iter().any(|byte| *byte != b'0');
    let [version @ .., _] = value.get(..3).unwrap_or_default() else { return false };
    value.len() == 55
        && [2, 35, 52].iter().all(|at| value[*at] == b'-')
        && hex(version)
        && version != b"ff"
        && id(&value[3..35])
        && id(&value[36..52])
        && hex(&value[53..])
}

fn standard(method: &Method) -> &'static str {
    [Method::GET, Method::HEAD, Method::POST]
        .iter()
        .zip(["GET", "HEAD", "POST"])
        .find_map(|(known, name)| (known == method).then_some(name))
        .unwrap_or("other")
}

fn new_id() -> HeaderValue {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let mut seed = [0; 20];
    seed[..8].copy_from_slice(&now.to_le_bytes());
    seed[8..16].copy_from_slice(&NUMBER.fetch_add(1, Relaxed).to_le_bytes());
    seed[16..].copy_from_slice(&std::process::id().to_le_bytes());
    HeaderValue::try_from(format!("{:016x}", xxh3_64(&seed))).unwrap_or_else(|_| HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_as_the_standard_has_them() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(is_traceparent(good.as_bytes()));
        for bad in [
            "",
            "00",
            &good[..54],
            &format!("{good}-x"),
            &good.to_uppercase(),
            &good.replace("00-4", "ff-4"),
            &good.replace('-', "_"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473\n-00f067aa0ba902b7-01",
        ] {
            assert!(!is_traceparent(bad.as_bytes()), "{bad}");
        }
        assert!(
            is_id(b"a-1")
                && !is_id(b"")
                && !is_id(b"a b")
                && !is_id(b"a\tb")
                && !is_id(&[b'x'; 129])
                && !is_id("é".as_bytes())
        );
        assert_ne!(new_id(), new_id());
    }
}
