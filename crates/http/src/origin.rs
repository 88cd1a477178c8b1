//! Requests that a web page makes a visitor's browser send.
//!
//! A browser lets any page send some requests to any server, with the visitor's access: from the visitor's network, and
//! with the visitor's certificate. It marks them with two headers, which pages cannot set.

use hyper::header::{HeaderValue, ORIGIN};
use hyper::{Request, StatusCode};

use crate::Denial;
use crate::keys::named_host;

/// Refuses a request made by a page of another origin. `allowed`: permitted origins.
pub(crate) fn check_origin<B>(request: &Request<B>, allowed: &[String]) -> Result<(), Denial> {
    let headers = request.headers();
    let is_allowed = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) || is_own(request, origin)
    };
    let mut origins = headers.get_all(ORIGIN).iter().peekable();
    let names_any = origins.peek().is_some();
    if !origins.all(is_allowed) {
        return Err(foreign_origin());
    }
    // A page of a permitted origin is cross-site nevertheless.
    let is_fine = |site: &HeaderValue| names_any || matches!(site.as_bytes(), b"same-origin" | b"none");
    if headers.get_all("sec-fetch-site").iter().all(is_fine) { Ok(()) } else { Err(foreign_origin()) }
}

/// The refusal of a request made by a web page.
fn foreign_origin() -> Denial {
    let message = "the headers Origin and Sec-Fetch-Site say that a web page of another origin has sent this: pages may \
                   only ask the server that they come from, or the router if http.origins names their origin";
    Denial::new(StatusCode::FORBIDDEN, "foreign_origin", message)
}

/// True if an origin is the server itself, under the host name of the request.
fn is_own<B>(request: &Request<B>, origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let without_port = |authority: &'_ str| authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase();
    let host = named_host(request).and_then(|host| std::str::from_utf8(host).ok());
    host.is_some_and(|host| without_port(host) == without_port(authority))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_others() {
        for (host, headers, passes) in [
            ("a:8080", &[][..], true),
            ("a:8080", &[("origin", "http://a:8080")], true),
            ("a:8080", &[("origin", "https://A:8080"), ("sec-fetch-site", "same-origin")], true),
            ("a", &[("origin", "https://a:443")], true),
            ("a:443", &[("origin", "https://a")], true),
            ("a", &[("origin", "https://friend.example"), ("sec-fetch-site", "cross-site")], true),
            ("a", &[("sec-fetch-site", "none")], true),
            ("a", &[("sec-fetch-site", "same-origin")], true),
            ("a:8080", &[("origin", "http://a")], false),
            ("a:8080", &[("origin", "http://a:80")], false),
            ("a:8080", &[("origin", "http://a:8080.evil.example")], false),
            ("a", &[("origin", "null")], false),
            ("a", &[("origin", "")], false),
            ("a", &[("origin", "file://a")], false),
            ("a", &[("origin", "https://evil.example")], false),
            ("a", &[("origin", "https://friend.example.evil.example")], false),
            ("a", &[("origin", "https://friend.example"), ("origin", "https://evil.example")], false),
            ("a", &[("sec-fetch-site", "cross-site")], false),
            ("a", &[("sec-fetch-site", "same-site")], false),
            ("a", &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")], false),
            ("a", &[("sec-fetch-site", "else")], false),
            ("", &[("origin", "http://")], false),
        ] {
            let mut request = Request::builder();
            if !host.is_empty() {
                request = request.header("host", host);
            }
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(()).expect("a request");
            let checked = check_origin(&request, &["https://friend.example".to_owned()]);
            assert_eq!(checked.is_ok(), passes, "{host} {headers:?}");
        }
    }
}
