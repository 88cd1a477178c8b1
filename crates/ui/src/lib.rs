//! Web page of the service and the router, and the feed of data that the page shows.
//!
//! The crate has no sockets, threads or clock: a server calls [`Feed::update`] periodically, and sends the bytes of
//! each [`Viewer`] to a client. An update is computed once for all viewers, and not at all if there are none.
//!
//! | file | content |
//! |---|---|
//! | `lib.rs` | [`asset`]: the page's files, compiled in from `assets/` without a build step or external files |
//! | `feed.rs` | [`Feed`]: turns states into server-sent events; [`Viewer`]: one connected client |
//!
//! # The events
//!
//! | event | data |
//! |---|---|
//! | `whole` | `{"state": …, "lists": {…}}`: state and lists, complete; sent first, and again after a viewer fell behind |
//! | `state` | the new state, if it has changed |
//! | `more` | `{"list": name, "items": […]}`: items to append to the list |

#![forbid(unsafe_code)]

mod feed;

pub use feed::{Feed, TooManyViewers, Viewer};

/// File of the web page, such as a script or a style sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Media type of the file, for `Content-Type`.
    pub media_type: &'static str,
    /// Bytes of the file.
    pub bytes: &'static [u8],
}

/// Value of the page's `Content-Security-Policy` header: the page may load files from its own origin only.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! assets {
    ($($path:literal $kind:ident $file:literal,)*) => {
        /// Returns the page's file at a path of the server, such as `/ui`; `None` if the page has no such file.
        #[must_use]
        pub fn asset(path: &str) -> Option<Asset> {
            match path {
                $($path => Some(Asset { media_type: $kind, bytes: include_bytes!(concat!("../assets/", $file)) }),)*
                _ => None,
            }
        }

        #[cfg(test)]
        const PATHS: &[&str] = &[$($path),*];
    };
}

assets! {
    "/ui" HTML "page.html",
    "/ui/page.css" CSS "page.css",
    "/ui/page.js" SCRIPT "page.js",
    "/ui/feed.js" SCRIPT "feed.js",
    "/ui/format.js" SCRIPT "format.js",
    "/ui/charts.js" SCRIPT "charts.js",
    "/ui/summary.js" SCRIPT "summary.js",
    "/ui/rows.js" SCRIPT "rows.js",
    "/ui/engines.js" SCRIPT "engines.js",
    "/ui/decisions.js" SCRIPT "decisions.js",
    "/ui/dom.js" SCRIPT "dom.js",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_a_file_names_is_there_and_nothing_comes_from_elsewhere() {
        for path in PATHS {
            let text = std::str::from_utf8(asset(path).expect("listed").bytes).expect("UTF-8");
            let quoted = text.split('"').skip(1).step_by(2).filter(|part| !part.contains(['\n', ' ', '$']));
            for part in quoted {
                let file = part.strip_prefix("./").or(part.strip_prefix("ui/"));
                if let Some(file) = file.filter(|file| file.ends_with(".js") || file.ends_with(".css")) {
                    assert!(asset(&format!("/ui/{file}")).is_some(), "{path} names {part}");
                }
                // The names of XML's vocabularies are not fetched.
                let is_name = part.starts_with("http://www.w3.org/");
                assert!(!part.contains("//") || is_name, "{path} names {part}");
            }
            assert!(
                !text.contains("innerHTML") && !text.contains("eval("),
                "{path}: what engines say is text, not HTML"
            );
        }
        assert_eq!(asset("/ui/../Cargo.toml"), None);
    }

    #[test]
    fn the_page_needs_nothing_that_its_policy_forbids() {
        let page = std::str::from_utf8(asset("/ui").expect("a page").bytes).expect("UTF-8");
        assert!(
            !page.contains("style=") && !page.contains("<style") && !page.contains(" on"),
            "inline style or handler"
        );
        assert!(page.matches("<script").count() == 1 && page.contains(r#"<script type="module" src="ui/page.js">"#));
    }
}
