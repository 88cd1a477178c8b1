//! An index in another process: asked over HTTP by content hashes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_service::lookup::Held;
use serde::Deserialize;

use crate::config::{Config, EngineConfig};
use crate::control::whole;
use crate::engine::Engine;
use crate::error::Error;

/// Within which it must answer: a request does not wait longer to be placed well.
const PATIENCE: Duration = Duration::from_millis(50);

/// An index in another process.
pub(crate) struct Remote {
    /// Where it is: connections to it are kept as those to engines are.
    at: Engine,
    routing_group: String,
    /// The shard of its connections for who serves no requests.
    pub(crate) own_shard: usize,
    /// Questions that were answered, and those that were not.
    pub(crate) answered: AtomicU64,
    pub(crate) unanswered: AtomicU64,
}

#[derive(Deserialize)]
struct Answer {
    instances: HashMap<String, Instance>,
    block_size: u32,
}

#[derive(Deserialize)]
struct Instance {
    longest_matched: u32,
    gpu: u32,
    cpu: u32,
    dp: HashMap<String, u32>,
}

impl Remote {
    pub(crate) fn new(url: &str, config: &Config, shards: usize) -> Result<Self, Error> {
        let at =
            EngineConfig { name: Some("index".to_owned()), key: config.index_key.clone(), ..EngineConfig::at(url) };
        if !url.starts_with("http://") {
            return Err(Error::config(format!("index must be http://host:port, got {url:?}")));
        }
        // The keys of engines are not for the index.
        let mut settings = config.clone();
        settings.upstream.key = None;
        let at = Engine::new(at, &settings, shards + 1, None)?;
        let routing_group = config.routing_group.clone();
        Ok(Self { at, routing_group, own_shard: shards, answered: AtomicU64::new(0), unanswered: AtomicU64::new(0) })
    }

    /// What ranks hold of a prompt: None if nobody knows. `number`: the caller's number for a worker's rank.
    pub(crate) async fn look_up(
        &self,
        shard: usize,
        model: &str,
        content: &[u64],
        number: impl Fn(&str, u32) -> Option<u32>,
    ) -> Option<Vec<Held>> {
        let asked = tokio::time::timeout(PATIENCE, self.ask(shard, model, content)).await;
        let Ok(Some(answer)) = asked else {
            self.unanswered.fetch_add(1, Relaxed);
            return None;
        };
        self.answered.fetch_add(1, Relaxed);
        let blocks = |tokens: u32| tokens / answer.block_size.max(1);
        let mut held = Vec::new();
        for (worker, its) in &answer.instances {
            let alone = its.dp.len() <= 1;
            let mut add = |rank: u32, device: u32| {
                let Some(number) = number(worker, rank) else { return };
                // Other tiers are told of the worker as a whole: of one rank only that is its own.
                let more = |tokens: u32| if alone { blocks(tokens).max(device) } else { device };
                held.push(Held { number, device, host: more(its.cpu), any: more(its.longest_matched) });
            };
            if its.dp.is_empty() {
                add(0, blocks(its.gpu));
            }
            for (rank, tokens) in &its.dp {
                if let Ok(rank) = rank.parse() {
                    add(rank, blocks(*tokens));
                }
            }
        }
        Some(held)
    }

    async fn ask(&self, shard: usize, model: &str, content: &[u64]) -> Option<Answer> {
        let encode =
            |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let body: Vec<u8> = content.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let key = self.at.authorization.as_ref().map_or(String::new(), |key| format!("authorization: {key}\r\n"));
        let head = format!(
            "POST {}/query_by_hash?model_name={}&routing_group={} HTTP/1.1\r\nhost: {}\r\n{key}content-type: application/octet-stream\r\n\
             content-length: {}\r\n\r\n",
            self.at.address.base,
            encode(model),
            encode(&self.routing_group),
            self.at.address.authority,
            body.len()
        );
        let mut connection = self.at.connection(shard).await.ok()?;
        connection.send(head.as_bytes(), &body).await.ok()?;
        let answer = connection.head(&hyper::Method::POST).await.ok()?;
        let (keep, is_ok) = (answer.keep, answer.status.is_success());
        let (connection, body) = whole(connection, answer.framing).await.ok()?;
        if keep && connection.is_clean() {
            self.at.pool.put(shard, connection);
        }
        is_ok.then(|| serde_json::from_slice(&body).ok()).flatten()
    }
}
