//! The routes: their paths, their methods, and who may use them.

use hyper::Method;

/// What `GET /` says.
pub(crate) const WELCOME: &str = "\
kvatlas: which worker holds how much of a prompt

POST /query            how much of these token_ids each worker holds
POST /query_by_hash    how much of these content_hashes each worker holds
POST /query_batch      many queries in one request
POST /register         follow an engine's events
POST /unregister       stop following a worker and forget its blocks
GET  /workers          registered workers and the state of their streams
GET  /dump             every block held, as events
GET  /health           200 while the service's threads are running
GET  /ready            200 from when answers are complete
GET  /metrics          metrics for Prometheus
GET  /openapi.json     this interface in detail (OpenAPI 3.1)
";

macro_rules! routes {
    ($($name:ident $path:literal $method:ident $open:literal,)*) => {
        /// What can be asked.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Route {
            $($name,)*
            /// Any other path.
            Unknown,
        }

        impl Route {
            /// All, in order of their numbers.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)* Self::Unknown];

            /// The path, as metrics name it.
            pub(crate) fn path(self) -> &'static str {
                match self {
                    $(Self::$name => $path,)*
                    Self::Unknown => "other",
                }
            }

            pub(crate) fn of(path: &str) -> Self {
                match path {
                    $($path => Self::$name,)*
                    _ => Self::Unknown,
                }
            }

            pub(crate) fn method(self) -> &'static Method {
                match self {
                    $(Self::$name => &Method::$method,)*
                    Self::Unknown => &Method::GET,
                }
            }

            /// Whether it is answered without a key.
            pub(crate) fn is_open(self) -> bool {
                match self {
                    $(Self::$name => $open,)*
                    Self::Unknown => false,
                }
            }
        }
    };
}

routes! {
    Query "/query" POST false,
    QueryByHash "/query_by_hash" POST false,
    QueryBatch "/query_batch" POST false,
    Register "/register" POST false,
    Unregister "/unregister" POST false,
    Workers "/workers" GET false,
    Dump "/dump" GET false,
    Health "/health" GET true,
    Ready "/ready" GET true,
    Metrics "/metrics" GET false,
    OpenApi "/openapi.json" GET false,
    Welcome "/" GET false,
}
