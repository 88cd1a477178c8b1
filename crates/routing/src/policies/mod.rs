//! Policies by name: the plain ones, and those of other routers by their published formulas, with their owners' defaults.
//!
//! Each file says in words and symbols what its policy computes, where that is published, and what is not the same here.
//! They see what their owners see: requests they sent, what engines report, what they sent before, or the index where the
//! owner reads engine events. `docs/reference/policies.md` lists them with their options.
//!
//! | file | what |
//! |---|---|
//! | `parts/` | what several are made of: random choice, a hash ring, tables of what was sent and of what is under way |
//! | the others | a policy each |
//! | `testing.rs`, `tests.rs` | tests only: fleets to decide on; what holds for all policies |

mod aibrix_prefix_cache;
mod dualmap;
mod dynamo_kv;
mod dynamo_two_tier;
mod least_loaded;
mod llm_d_scorers;
mod llm_d_token_load;
mod lmetric;
mod parts;
mod power_of_two;
mod preble;
mod prefix_hash;
mod production_stack_loadaware;
mod random;
mod ray_prefix_affinity;
mod round_robin;
mod session;
mod smg_cache_aware;
mod smg_spill;
mod sticky_least_loaded;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod vllm_router_kv_aware;

use crate::error::Error;
use crate::options::Options;
use crate::policy::Policy;

/// The names of all policies in here.
pub const NAMES: &[&str] = &[
    "random",
    "round-robin",
    "power-of-two",
    "least-loaded",
    "session",
    "prefix-hash",
    "smg-cache-aware",
    "smg-spill",
    "dynamo-kv",
    "vllm-router-kv-aware",
    "llm-d-scorers",
    "aibrix-prefix-cache",
    "preble",
    "ray-prefix-affinity",
    "production-stack-loadaware",
    "llm-d-token-load",
    "dynamo-agentic",
    "dynamo-two-tier",
    "lmetric",
    "dualmap",
    "sticky-least-loaded",
];

/// A policy in here. What it keeps can be counted, for tests.
trait BuiltinPolicy: Policy {
    /// Returns the number of requests that the policy remembers, and of things that it remembers of workers.
    #[cfg(test)]
    fn held(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// The policy called `name`.
///
/// # Errors
/// Code `unknown_policy`, or `bad_option` for an option that it does not have or cannot use.
pub fn by_name(name: &str, options: Options, seed: u64) -> Result<Box<dyn Policy>, Error> {
    Ok(inside(name, options, seed)?)
}

fn inside(name: &str, mut options: Options, seed: u64) -> Result<Box<dyn BuiltinPolicy>, Error> {
    let given = &mut options;
    let policy: Box<dyn BuiltinPolicy> = match name {
        "random" => Box::new(random::Random::new(given, seed)?),
        "round-robin" => Box::new(round_robin::RoundRobin::new(given, seed)?),
        "power-of-two" => Box::new(power_of_two::PowerOfTwo::new(given, seed)?),
        "least-loaded" => Box::new(least_loaded::LeastLoaded::new(given, seed)?),
        "session" => Box::new(session::Session::new(given, seed)?),
        "prefix-hash" => Box::new(prefix_hash::PrefixHash::new(given, seed)?),
        "smg-cache-aware" => Box::new(smg_cache_aware::SmgCacheAware::new(given, seed)?),
        "smg-spill" => Box::new(smg_spill::SmgSpill::new(given, seed)?),
        "dynamo-kv" => Box::new(dynamo_kv::DynamoKv::new(given, seed)?),
        "vllm-router-kv-aware" => Box::new(vllm_router_kv_aware::VllmRouterKvAware::new(given, seed)?),
        "llm-d-scorers" => Box::new(llm_d_scorers::LlmDScorers::new(given, seed)?),
        "aibrix-prefix-cache" => Box::new(aibrix_prefix_cache::AibrixPrefixCache::new(given, seed)?),
        "preble" => Box::new(preble::Preble::new(given, seed)?),
        "ray-prefix-affinity" => Box::new(ray_prefix_affinity::RayPrefixAffinity::new(given, seed)?),
        "production-stack-loadaware" => Box::new(production_stack_loadaware::LoadAware::new(given, seed)?),
        "llm-d-token-load" => Box::new(llm_d_token_load::LlmDTokenLoad::new(given, seed)?),
        "dynamo-agentic" => Box::new(dynamo_kv::DynamoKv::agentic(given, seed)?),
        "dynamo-two-tier" => Box::new(dynamo_two_tier::DynamoTwoTier::new(given, seed)?),
        "dualmap" => Box::new(dualmap::DualMap::new(given, seed)?),
        "lmetric" => Box::new(lmetric::LMetric::new(given, seed)?),
        "sticky-least-loaded" => Box::new(sticky_least_loaded::StickyLeastLoaded::new(given, seed)?),
        _ => {
            let names = NAMES.join(", ");
            return Err(Error::new("unknown_policy", format!("no policy {name:?}: there are {names}")));
        }
    };
    options.finish(name)?;
    Ok(policy)
}
