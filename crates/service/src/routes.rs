//! Routes of the service: paths, methods, and required access.

use hyper::Method;
use kvatlas_http::{Access, ListenerKind};

/// Text of the answer to `GET /`, which lists the main routes.
pub(crate) const WELCOME: &str = "\
kvatlas: which worker holds how much of a prompt

POST /query            how much of these token_ids each worker holds
POST /query_by_hash    how much of these content_hashes each worker holds
POST /query_batch      many queries in one request
POST /observed         report how much of a prompt an engine had cached
POST /digest           take in a digest of a site (--role global)
POST /sites            which sites hold how much of a prompt (--role global)
POST /sites/compare    report what a site that was asked really held
GET  /sites/status     the sites, their age and how far they are trusted
POST /register         follow an engine's events
POST /unregister       stop following a worker and forget its blocks
GET  /workers          registered workers and the state of their streams
GET  /engines          configured engines and streams, and why some are not registered
GET  /dump             every block held, as events
GET  /snapshot         the same for another service to start from (--peer-snapshot)
GET  /ui               a web page that shows the fleet live
GET  /ui/events        the contents of that page, as server-sent events
GET  /health           200 while the service's threads are running
GET  /ready            200 once answers are complete
GET  /metrics          metrics for Prometheus
GET  /version          the version of the service
GET  /openapi.json     this interface in detail (OpenAPI 3.1)
";

macro_rules! routes {
    ($($name:ident $path:literal $method:ident $access:ident,)*) => {
        /// Route of the service, given by a method and a path.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Route {
            $($name,)*
            /// Any path that is not one of the service's routes.
            Unknown,
        }

        impl Route {
            /// All routes, in the order of their declaration.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)* Self::Unknown];

            /// Returns the path of the route, as shown in metrics.
            pub(crate) fn path(self) -> &'static str {
                match self {
                    $(Self::$name => $path,)*
                    Self::Unknown => "other",
                }
            }

            pub(crate) fn of(path: &str) -> Self {
                match path {
                    $($path => Self::$name,)*
                    _ if kvatlas_ui::asset(path).is_some() => Self::Page,
                    _ => Self::Unknown,
                }
            }

            pub(crate) fn method(self) -> &'static Method {
                match self {
                    $(Self::$name => &Method::$method,)*
                    Self::Unknown => &Method::GET,
                }
            }

            /// True if the route is available at this listener: all routes at the main one; only health, readiness,
            /// metrics and version at the one for administrators.
            pub(crate) fn is_at(self, listener: ListenerKind) -> bool {
                listener == ListenerKind::Main || matches!(self, Self::Health | Self::Ready | Self::Metrics | Self::Version)
            }

            /// Returns the access rights that a request to the route needs.
            pub(crate) fn access(self) -> Access {
                match self {
                    $(Self::$name => Access::$access,)*
                    Self::Unknown => Access::Ask,
                }
            }
        }
    };
}

routes! {
    Query "/query" POST Ask,
    QueryByHash "/query_by_hash" POST Ask,
    QueryBatch "/query_batch" POST Ask,
    Observed "/observed" POST Admin,
    Digest "/digest" POST Admin,
    Sites "/sites" POST Ask,
    SitesCompare "/sites/compare" POST Admin,
    SitesStatus "/sites/status" GET Ask,
    Register "/register" POST Admin,
    Unregister "/unregister" POST Admin,
    Workers "/workers" GET Ask,
    Engines "/engines" GET Ask,
    Dump "/dump" GET Admin,
    Snapshot "/snapshot" GET Admin,
    // Its files are public: the data they show comes by the next route.
    Page "/ui" GET Open,
    PageEvents "/ui/events" GET Ask,
    Health "/health" GET Open,
    Ready "/ready" GET Open,
    Metrics "/metrics" GET Ask,
    Version "/version" GET Open,
    OpenApi "/openapi.json" GET Ask,
    Welcome "/" GET Ask,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_routes_has_the_table() {
        let page = include_str!("routes.md");
        let who = |access| match access {
            Access::Open => "anyone",
            Access::Ask => "key",
            Access::Admin => "admin key",
        };
        let known = Route::ALL.iter().filter(|route| **route != Route::Unknown);
        let row = |route: &Route| format!("| `{}` | `{}` | {} |\n", route.method(), route.path(), who(route.access()));
        let rows: String = known.map(row).collect();
        assert!(page.contains(&rows), "crates/service/src/routes.md should have these rows:\n{rows}");
    }
}
