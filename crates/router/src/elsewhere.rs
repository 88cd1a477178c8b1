//! Who is asked what engines hold where that is known in another process: the index of these engines, or, where the
//! "engines" are sites, the service above the sites.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use kvatlas_service::lookup::Held;
use tokio_rustls::rustls::ClientConfig;

use crate::config::{Config, EngineConfig};
use crate::control::whole;
use crate::engine::Engine;
use crate::error::Error;
use crate::global::{Bounds, Global};
use crate::place::row;
use crate::remote::Remote;

pub(crate) const JSON: &str = "application/json";
pub(crate) const BYTES: &str = "application/octet-stream";

/// Another process that says what engines hold.
pub(crate) enum Elsewhere {
    /// An index of the engines.
    Index(Box<Remote>),
    /// The service above sites.
    Global(Arc<Global>),
}

/// What a prompt is asked about with.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) model: &'a str,
    pub(crate) block_size: u32,
    pub(crate) hashes: &'a [u64],
}

/// What was found.
pub(crate) struct Looked {
    pub(crate) held: Vec<Held>,
    /// What the service above sites said of each of them.
    pub(crate) bounds: Option<Arc<Bounds>>,
}

impl Elsewhere {
    /// The one that the configuration names, if it names one. `tls` checks its certificate.
    pub(crate) fn new(config: &Config, shards: usize, tls: &Arc<ClientConfig>) -> Result<Option<Self>, Error> {
        Ok(match (&config.index, &config.global_url) {
            (Some(url), _) => Some(Self::Index(Box::new(Remote::new(url, config, shards, tls)?))),
            (None, Some(url)) => Some(Self::Global(Arc::new(Global::new(url, config, shards, tls)?))),
            (None, None) => None,
        })
    }

    /// The shard of its connections for who serves no requests.
    pub(crate) fn own_shard(&self) -> usize {
        match self {
            Self::Index(remote) => remote.own_shard,
            Self::Global(global) => global.own_shard,
        }
    }

    /// The service above sites, if that is asked.
    pub(crate) fn global(&self) -> Option<&Arc<Global>> {
        match self {
            Self::Index(_) => None,
            Self::Global(global) => Some(global),
        }
    }

    /// What these engines hold of a prompt: None if nobody says so in time.
    pub(crate) async fn look_up(
        &self,
        shard: usize,
        question: Question<'_>,
        engines: &[Arc<Engine>],
    ) -> Option<Looked> {
        match self {
            Self::Index(remote) => {
                let number = |worker: &str, rank| row(engines, worker, rank);
                let held = remote.look_up(shard, question.model, question.hashes, number).await?;
                Some(Looked { held, bounds: None })
            }
            Self::Global(global) => {
                let bounds = global.look_up(shard, question).await?;
                Some(Looked { held: bounds.held(engines, question.block_size), bounds: Some(bounds) })
            }
        }
    }
}

/// A process that is no engine, as something to have connections to. `setting` is its name in the configuration.
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

/// What it answers to a POST, on a connection that is kept.
pub(crate) async fn post(
    at: &Engine,
    shard: usize,
    path: &str,
    kind: &str,
    body: &[u8],
) -> Result<(StatusCode, Vec<u8>), String> {
    let key = at.authorization.as_ref().map_or(String::new(), |key| format!("authorization: {key}\r\n"));
    let (base, authority, length) = (&at.address.base, &at.address.authority, body.len());
    let head = format!(
        "POST {base}{path} HTTP/1.1\r\nhost: {authority}\r\n{key}content-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut connection = at.connection(shard).await.map_err(|fault| fault.to_string())?;
    let answer = connection.ask(head.as_bytes(), body, &Method::POST).await.map_err(|fault| fault.to_string())?;
    let (keep, status) = (answer.keep, answer.status);
    let (connection, body) = whole(connection, answer.framing).await?;
    if keep && connection.is_clean() {
        at.pool.put(shard, connection);
    }
    Ok((status, body))
}
