//! Clients of other processes: an index, the service that indexes many sites, and other routers, with reusable
//! connections to them.
//!
//! | file | contents |
//! |---|---|
//! | `index.rs` | lookups in an index in another process, or in the service that indexes many sites (`sites`) |
//! | `cache_reports.rs` | reports of cached tokens to the index |
//! | `peers.rs`, `peer_requests.rs` | other routers, and the exchange of requests with them |

pub(crate) mod cache_reports;
pub(crate) mod index;
pub(crate) mod peer_requests;
pub(crate) mod peers;
pub(crate) mod sites;

use std::sync::Arc;

use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode};
use tokio_rustls::rustls::ClientConfig;

use crate::config::{Config, EngineConfig};
use crate::engines::{Engine, Fault, whole};
use crate::error::Error;

pub(crate) const JSON: &str = "application/json";
pub(crate) const BYTES: &str = "application/octet-stream";

/// Lookup of a prompt: the request's model, and the content hashes of the prompt's blocks.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) model: &'a str,
    pub(crate) block_size: u32,
    pub(crate) hashes: &'a [u64],
}

/// Makes a client, as an [`Engine`], for connections to a service that is not an inference engine. `setting`: name of
/// the service's setting, for errors; `its`: URL and key of the service.
pub(crate) fn service_at(
    setting: &str,
    mut its: EngineConfig,
    config: &Config,
    shards: usize,
    tls: &Arc<ClientConfig>,
) -> Result<Engine, Error> {
    if !its.url.starts_with("http://") && !its.url.starts_with("https://") {
        return Err(Error::config(format!(
            "{setting} must be http://host:port or https://host:port, got {:?}",
            its.url
        )));
    }
    // The keys of engines are not for it.
    let mut settings = config.clone();
    settings.upstream.key = None;
    let tls = its.url.starts_with("https://").then(|| tls.clone());
    its.name = Some(setting.to_owned());
    Engine::new(its, &settings, shards, tls)
}

/// Sends a POST request on a reusable connection, and returns the answer's status and body. `kind`: content type.
pub(crate) async fn post(
    at: &Engine,
    shard: usize,
    path: &str,
    kind: &'static str,
    body: &[u8],
) -> Result<(StatusCode, Vec<u8>), Fault> {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
    post_with(at, shard, path, &headers, body).await
}

/// Sends a POST request with given headers on a reusable connection, and returns the answer's status and body.
pub(crate) async fn post_with(
    at: &Engine,
    shard: usize,
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(StatusCode, Vec<u8>), Fault> {
    let key = at.authorization.as_ref().map_or(String::new(), |key| format!("authorization: {key}\r\n"));
    let (base, authority, length) = (&at.address.base, &at.address.authority, body.len());
    let mut head =
        format!("POST {base}{path} HTTP/1.1\r\nhost: {authority}\r\n{key}content-length: {length}\r\n").into_bytes();
    for (name, value) in headers {
        for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(piece);
        }
    }
    head.extend_from_slice(b"\r\n");
    let mut connection = at.connection(shard).await?;
    let answer = connection.ask(&head, body, &Method::POST).await?;
    let (keep, status) = (answer.keep, answer.status);
    let (connection, body) = whole(connection, answer.framing).await.map_err(Fault::Broken)?;
    if keep && connection.is_clean() {
        at.pool.put(shard, connection);
    }
    Ok((status, body))
}
