//! Index in another process: either an index of the engines, queried over HTTP by content hashes, or the service that
//! indexes many sites, if this router's engines are sites.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvatlas_follow::lookup::RankDepths;
use serde::Deserialize;
use serde_json::Value;
use tokio_rustls::rustls::ClientConfig;

use crate::config::{Config, EngineConfig};
use crate::engines::Engine;
use crate::engines::fleet::EngineTable;
use crate::error::Error;
use crate::remote::sites::{Bounds, SitesService};
use crate::remote::{BYTES, Question, post, service_at};

/// Time limit for an answer of the index, after which the request is routed without an answer.
const PATIENCE: Duration = Duration::from_millis(50);

/// Client of an index in another process, which is queried over HTTP.
pub(crate) struct RemoteIndex {
    /// HTTP server of the index, with a pool of connections.
    at: Engine,
    routing_group: String,
    /// Number of the connection pool that is used by tasks without a client's request.
    pub(crate) own_shard: usize,
    /// Number of look-ups of prompts that the index answered in time.
    pub(crate) answered: AtomicU64,
    /// Number of look-ups of prompts that the index did not answer in time.
    pub(crate) unanswered: AtomicU64,
}

#[derive(Deserialize)]
struct Answer {
    instances: HashMap<String, Instance>,
    block_size: u32,
    #[serde(default)]
    unverified: Vec<UnverifiedRank>,
}

/// Rank of an engine that may have restarted unnoticed, so that its blocks may be gone.
#[derive(Deserialize)]
struct UnverifiedRank {
    instance_id: Value,
}

/// Result of a lookup in the index: the number of leading blocks of a prompt that each rank holds, and the engines that
/// may have restarted.
pub(crate) struct Holdings {
    pub(crate) held: Vec<RankDepths>,
    unverified: Vec<UnverifiedRank>,
}

impl Holdings {
    /// True if the index reports that an engine may have restarted unnoticed, so that its blocks may be gone.
    pub(crate) fn is_unverified(&self, worker: &str) -> bool {
        self.unverified.iter().any(|rank| is_id(&rank.instance_id, worker))
    }
}

#[derive(Deserialize)]
struct Instance {
    longest_matched: u32,
    gpu: u32,
    cpu: u32,
    dp: HashMap<String, u32>,
    /// Parts of the prompt that the rank with the most loadable tokens holds or can load; None if the worker holds
    /// blocks only on its device, or the index is an older version.
    #[serde(default)]
    loadable: Option<Vec<LoadableSegment>>,
    /// Number of leading prompt tokens that the engine of this rank uses instead of computing them: those on its device
    /// and those it loads. None from an index of an older version.
    #[serde(default)]
    used: Option<u32>,
    /// Number of leading prompt tokens that other engines can pull from the rank that can load most.
    #[serde(default)]
    pullable: u32,
}

/// Part of a prompt that a rank holds or can load.
#[derive(Deserialize)]
struct LoadableSegment {
    to: u32,
    tier: String,
    /// Id of the worker itself, or name of the pool (shared store) from which the part can be loaded.
    source: Value,
    dp_rank: u32,
}

impl Answer {
    /// Converts the answer to the depth of each rank (number of leading blocks held). `number`: function that returns
    /// the caller's number for a worker's rank; None to omit the rank.
    fn depths(&self, number: impl Fn(&str, u32) -> Option<u32>) -> Vec<RankDepths> {
        let blocks = |tokens: u32| tokens / self.block_size.max(1);
        let mut held = Vec::new();
        for (worker, its) in &self.instances {
            let mut ranks: Vec<(u32, u32)> =
                its.dp.iter().filter_map(|(rank, tokens)| Some((rank.parse().ok()?, blocks(*tokens)))).collect();
            let loads = its.loadable.as_ref().and_then(|segments| Some((segments.first()?.dp_rank, segments)));
            let is_listed = |rank: u32| ranks.iter().any(|(its, _)| *its == rank);
            match loads {
                Some((rank, _)) if !is_listed(rank) => ranks.push((rank, 0)),
                None if ranks.is_empty() => ranks.push((0, blocks(its.gpu))),
                _ => {}
            }
            let is_alone = ranks.len() == 1 && its.loadable.is_none();
            held.extend(ranks.iter().filter_map(|&(rank, device)| {
                let number = number(worker, rank)?;
                let (host, any, pullable) = match loads {
                    Some((its_rank, segments)) if its_rank == rank => {
                        let is_own =
                            |it: &&LoadableSegment| matches!(&*it.tier, "gpu" | "cpu") && is_id(&it.source, worker);
                        let host = segments.iter().take_while(is_own).last().map_or(0, |last| last.to);
                        let any = its.used.unwrap_or_else(|| segments.last().map_or(0, |last| last.to));
                        (blocks(host.min(any)), blocks(any), blocks(its.pullable))
                    }
                    // Other tiers are told of the worker as a whole: of one rank only that is its own.
                    _ if is_alone => (blocks(its.cpu), blocks(its.longest_matched), 0),
                    _ => (device, device, 0),
                };
                let host = host.max(device);
                Some(RankDepths { number, device, host, any: any.max(host), pullable })
            }));
        }
        held
    }
}

/// True if the id in the index's answer, a string or a number, identifies the worker `worker`.
fn is_id(id: &Value, worker: &str) -> bool {
    match id {
        Value::String(id) => id == worker,
        id => id.as_u64().is_some_and(|id| worker.parse() == Ok(id)),
    }
}

impl RemoteIndex {
    pub(crate) fn new(url: &str, config: &Config, shards: usize, tls: &Arc<ClientConfig>) -> Result<Self, Error> {
        let at = EngineConfig { key: config.index_key.clone(), ..EngineConfig::at(url) };
        let at = service_at("index", at, config, shards + 1, tls)?;
        let routing_group = config.routing_group.clone();
        Ok(Self { at, routing_group, own_shard: shards, answered: AtomicU64::new(0), unanswered: AtomicU64::new(0) })
    }

    /// Looks up the blocks of a prompt that each rank holds; None without a timely answer. `number`: function that
    /// returns the caller's number for a worker's rank.
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
        let held = answer.depths(number);
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

/// Client of a service in another process that is queried for the blocks that engines hold.
pub(crate) enum ExternalIndex {
    /// Index of the engines in another process.
    Index(Box<RemoteIndex>),
    /// Service that indexes many sites (fleets with their own indexes).
    Global(Arc<SitesService>),
}

/// Result of a lookup of a prompt in another process.
pub(crate) struct LookupResult {
    pub(crate) held: Vec<RankDepths>,
    /// Bounds on the number of cached tokens at each site; None unless the service indexes sites.
    pub(crate) bounds: Option<Arc<Bounds>>,
}

impl ExternalIndex {
    /// Makes the client of the configured service; None if no service is configured. `tls`: TLS configuration that
    /// verifies the service's certificate.
    pub(crate) fn new(config: &Config, shards: usize, tls: &Arc<ClientConfig>) -> Result<Option<Self>, Error> {
        Ok(match (&config.index, &config.global_url) {
            (Some(url), _) => Some(Self::Index(Box::new(RemoteIndex::new(url, config, shards, tls)?))),
            (None, Some(url)) => Some(Self::Global(Arc::new(SitesService::new(url, config, shards, tls)?))),
            (None, None) => None,
        })
    }

    /// Returns the number of the connection pool that is used by tasks without a client's request.
    pub(crate) fn own_shard(&self) -> usize {
        match self {
            Self::Index(remote) => remote.own_shard,
            Self::Global(global) => global.own_shard,
        }
    }

    /// Returns the client of the service that indexes many sites; None for an index of engines.
    pub(crate) fn global(&self) -> Option<&Arc<SitesService>> {
        match self {
            Self::Index(_) => None,
            Self::Global(global) => Some(global),
        }
    }

    /// Looks up the blocks of a prompt that the engines hold; None without a timely answer.
    pub(crate) async fn look_up(
        &self,
        shard: usize,
        question: Question<'_>,
        engines: &EngineTable,
    ) -> Option<LookupResult> {
        match self {
            Self::Index(remote) => {
                let number = |worker: &str, rank| engines.number(worker, rank);
                let told = remote.look_up(shard, question.model, question.hashes, number).await?;
                for engine in engines.iter().filter(|engine| engine.models.load().may_serve(Some(question.model))) {
                    engine.is_unverified.store(told.is_unverified(&engine.name), Relaxed);
                }
                Some(LookupResult { held: told.held, bounds: None })
            }
            Self::Global(global) => {
                let bounds = global.look_up(shard, question).await?;
                Some(LookupResult { held: bounds.held(engines, question.block_size), bounds: Some(bounds) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depths(instances: &str) -> Vec<RankDepths> {
        let answer = format!(r#"{{"instances":{instances},"block_size":16}}"#);
        let answer: Answer = serde_json::from_str(&answer).expect("an answer");
        let mut held = answer.depths(|worker, rank| Some(worker.len() as u32 * 10 + rank));
        held.sort_by_key(|row| row.number);
        held
    }

    #[test]
    fn what_can_be_loaded_and_pulled_counts_as_the_index_says() {
        let held = depths(
            r#"{"a":{"longest_matched":160,"gpu":32,"cpu":160,"disk":160,"dp":{"0":32},"pullable":64,"loadable":[
                {"from":0,"to":32,"tier":"gpu","source":"a","dp_rank":0,"certain":true},
                {"from":32,"to":96,"tier":"cpu","source":"a","dp_rank":0,"certain":true},
                {"from":96,"to":128,"tier":"external","source":"folder","dp_rank":0,"certain":false,"age":1.5}]}}"#,
        );
        assert_eq!(held, [RankDepths { number: 10, device: 2, host: 6, any: 8, pullable: 4 }]);
    }

    #[test]
    fn a_rank_with_nothing_on_its_device_can_load_and_be_pulled_from() {
        let held = depths(
            r#"{"7":{"longest_matched":0,"gpu":0,"cpu":0,"disk":0,"dp":{},"pullable":48,"loadable":[
                {"from":0,"to":48,"tier":"cpu","source":7,"dp_rank":1,"certain":true}]},
                "bb":{"longest_matched":0,"gpu":0,"cpu":0,"disk":0,"dp":{"2":16},"pullable":0,"loadable":[
                {"from":0,"to":48,"tier":"external","source":"pool","dp_rank":1,"certain":true}]}}"#,
        );
        let own = RankDepths { number: 11, device: 0, host: 3, any: 3, pullable: 3 };
        let of_pool = RankDepths { number: 21, device: 0, host: 0, any: 3, pullable: 0 };
        let beside = RankDepths { number: 22, device: 1, host: 1, any: 1, pullable: 0 };
        assert_eq!(held, [own, of_pool, beside]);
    }

    #[test]
    fn an_index_that_does_not_say_what_can_be_loaded_is_read_by_its_tiers() {
        let held = depths(
            r#"{"a":{"longest_matched":64,"gpu":16,"cpu":32,"disk":64,"dp":{"0":16}},
                "bb":{"longest_matched":64,"gpu":16,"cpu":32,"disk":64,"dp":{"0":16,"1":32}}}"#,
        );
        let alone = RankDepths { number: 10, device: 1, host: 2, any: 4, pullable: 0 };
        let row = |number, device| RankDepths { number, device, host: device, any: device, pullable: 0 };
        assert_eq!(held, [alone, row(20, 1), row(21, 2)]);
    }
}
