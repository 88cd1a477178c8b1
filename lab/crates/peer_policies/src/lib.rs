//! Routing policies of other routers, by their published formulas and with their owners' defaults, for comparison.
//!
//! Each file gives its policy's formula, its source, and the differences of this implementation. The policies use the
//! same inputs as the originals: requests they sent, engines' reports, prompts sent before, or the index where the
//! original reads engine events. `docs/reference/policies.md` lists them with their options. The product does not
//! depend on this crate; a program that wants these policies adds [`POLICIES`] to a
//! [`PolicyTable`](kvatlas_routing::PolicyTable).
//!
//! | file | content |
//! |---|---|
//! | `parts/` | parts shared by several policies: hashes of a prompt, tables of prompts sent and of requests in flight |
//! | others | the policies of one router each |
//! | `tests.rs` | tests of all policies, and fleets and prompts for the tests of each |

#![forbid(unsafe_code)]

mod aibrix_prefix_cache;
mod dynamo;
mod kvrouting;
mod llm_d;
mod parts;
mod preble;
mod prefix_hash;
mod ray_prefix_affinity;
mod smg_cache_aware;
mod smg_spill;
#[cfg(test)]
mod tests;
mod uncached_tokens;
mod vllm;

use aibrix_prefix_cache::AibrixPrefixCache;
use dynamo::{DynamoKv, DynamoTwoTier};
use kvatlas_routing::{PolicyEntry, boxed};
use kvrouting::KvRouting;
use llm_d::{LlmDScorers, LlmDTokenLoad};
use preble::Preble;
use prefix_hash::{DualMap, PrefixHash};
use ray_prefix_affinity::RayPrefixAffinity;
use smg_cache_aware::SmgCacheAware;
use smg_spill::SmgSpill;
use uncached_tokens::{Gorgo, LMetric};
use vllm::{LoadAware, VllmRouterKvAware};

/// Policies of this crate, by name.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry { name: "prefix-hash", make: |options, seed| boxed(PrefixHash::new(options, seed)) },
    PolicyEntry { name: "smg-cache-aware", make: |options, seed| boxed(SmgCacheAware::new(options, seed)) },
    PolicyEntry { name: "smg-spill", make: |options, seed| boxed(SmgSpill::new(options, seed)) },
    PolicyEntry { name: "dynamo-kv", make: |options, seed| boxed(DynamoKv::new(options, seed)) },
    PolicyEntry { name: "vllm-router-kv-aware", make: |options, seed| boxed(VllmRouterKvAware::new(options, seed)) },
    PolicyEntry { name: "llm-d-scorers", make: |options, seed| boxed(LlmDScorers::new(options, seed)) },
    PolicyEntry { name: "aibrix-prefix-cache", make: |options, seed| boxed(AibrixPrefixCache::new(options, seed)) },
    PolicyEntry { name: "preble", make: |options, seed| boxed(Preble::new(options, seed)) },
    PolicyEntry { name: "ray-prefix-affinity", make: |options, seed| boxed(RayPrefixAffinity::new(options, seed)) },
    PolicyEntry { name: "production-stack-loadaware", make: |options, seed| boxed(LoadAware::new(options, seed)) },
    PolicyEntry { name: "llm-d-token-load", make: |options, seed| boxed(LlmDTokenLoad::new(options, seed)) },
    PolicyEntry { name: "dynamo-agentic", make: |options, seed| boxed(DynamoKv::agentic(options, seed)) },
    PolicyEntry { name: "dynamo-two-tier", make: |options, seed| boxed(DynamoTwoTier::new(options, seed)) },
    PolicyEntry { name: "lmetric", make: |options, seed| boxed(LMetric::new(options, seed)) },
    PolicyEntry { name: "gorgo", make: |options, seed| boxed(Gorgo::new(options, seed)) },
    PolicyEntry { name: "kvrouting", make: |options, seed| boxed(KvRouting::new(options, seed)) },
    PolicyEntry { name: "dualmap", make: |options, seed| boxed(DualMap::new(options, seed)) },
];
