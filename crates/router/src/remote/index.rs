//! An index in another process: asked over HTTP by content hashes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_follow::lookup::RankDepths;
use serde::Deserialize;
use serde_json::Value;
use tokio_rustls::rustls::ClientConfig;

use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::error::Error;
use crate::remote::service::{BYTES, post, service_at};

/// Time within which the index must answer: a request does not wait longer to be placed well.
const PATIENCE: Duration = Duration::from_millis(50);

/// An index in another process.
pub(crate) struct RemoteIndex {
    /// Address of the index, with a pool of connections.
    at: Engine,
    routing_group: String,
    /// The shard of its connections for who serves no requests.
    pub(crate) own_shard: usize,
    /// Numbers of answered and of failed lookups.
    pub(crate) answered: AtomicU64,
    pub(crate) unanswered: AtomicU64,
}

#[derive(Deserialize)]
struct Answer {
    instances: HashMap<String, Instance>,
    block_size: u32,
    #[serde(default)]
    unverified: Vec<UnverifiedRank>,
}

/// A rank whose engine may have restarted unnoticed.
#[derive(Deserialize)]
struct UnverifiedRank {
    instance_id: Value,
}

/// The answer to a question about a prompt.
pub(crate) struct Holdings {
    pub(crate) held: Vec<RankDepths>,
    unverified: Vec<UnverifiedRank>,
}

impl Holdings {
    /// True if the index says that an engine may have restarted unnoticed.
    pub(crate) fn is_unverified(&self, worker: &str) -> bool {
        self.unverified.iter().any(|rank| match &rank.instance_id {
            Value::String(id) => id == worker,
            id => id.as_u64().is_some_and(|id| worker.parse() == Ok(id)),
        })
    }
}

#[derive(Deserialize)]
struct Instance {
    longest_matched: u32,
    gpu: u32,
    cpu: u32,
    dp: HashMap<String, u32>,
}

impl RemoteIndex {
    pub(crate) fn new(url: &str, config: &Config, shards: usize, tls: &Arc<ClientConfig>) -> Result<Self, Error> {
        let at = EngineConfig { key: config.index_key.clone(), ..EngineConfig::at(url) };
        let at = service_at("index", at, config, shards + 1, tls)?;
        let routing_group = config.routing_group.clone();
        Ok(Self { at, routing_group, own_shard: shards, answered: AtomicU64::new(0), unanswered: AtomicU64::new(0) })
    }

    /// Looks up the blocks of a prompt that each rank holds. None without an answer. `number`: the caller's number for
    /// a worker's rank.
    pub(crate) async fn look_up(
        &self,
        shard: usize,
        model: &str,
        content: &[u64],
        number: impl Fn(&str, u32) -> Option<u32>,
    ) -> Option<Holdings> {
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
                held.push(RankDepths { number, device, host: more(its.cpu), any: more(its.longest_matched) });
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
        Some(Holdings { held, unverified: answer.unverified })
    }

    async fn ask(&self, shard: usize, model: &str, content: &[u64]) -> Option<Answer> {
        let encode =
            |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let body: Vec<u8> = content.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let path = format!("/query_by_hash?model_name={}&routing_group={}", encode(model), encode(&self.routing_group));
        let (status, answer) = post(&self.at, shard, &path, BYTES, &body).await.ok()?;
        status.is_success().then(|| serde_json::from_slice(&answer).ok()).flatten()
    }
}
