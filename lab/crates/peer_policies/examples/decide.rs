//! Benchmark of routing decisions: time of `Router::choose`, in nanoseconds, by number of workers.
//!
//! `cargo run --release -p kvatlas-peer-policies --example decide`. Prompts have 750 blocks of 16 tokens; a quarter of
//! the workers hold half of each. Each request gets its first token 64 requests later and ends 256 later, and in fleets
//! of up to 64 workers the caches are half full of running prompts. With loads and pulls, the same quarter also has
//! more blocks in host memory, in pools and for other workers to pull. The lookup in the index is not timed; filling
//! [`Depths`] from its answer is. The arguments are the number of rounds and the names of the policies to measure, by
//! default all.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::collections::VecDeque;
use std::time::Instant;

use kvatlas_peer_policies::POLICIES;
use kvatlas_routing::{Config, Depth, Depths, Load, Options, Outcome, PolicyTable, Request, Router, Usage, WorkerId};

const BLOCKS: usize = 750;
const PROMPTS: u64 = 512;
/// Number of requests in flight.
const OPEN: usize = 256;

fn main() -> Result<(), kvatlas_routing::Error> {
    let rounds: usize = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(3);
    println!("{:<28} {:>10} {:>10} {:>10}   ns a choose, median of {rounds} rounds", "policy", 8, 64, 1_000);
    let only: Vec<String> = std::env::args().skip(2).collect();
    let policies = PolicyTable::own().with(POLICIES);
    for name in policies.names().filter(|name| only.is_empty() || only.iter().any(|its| its == name)) {
        let weighs_transfers = policies.make(name, Options::default(), 0)?.weighs_transfers();
        for moves in [false, true].into_iter().filter(|moves| !moves || weighs_transfers) {
            let mut line = format!("{:<28}", if moves { format!("{name}, loads and pulls") } else { name.to_owned() });
            for workers in [8, 64, 1_000] {
                let mut times: Vec<f64> = (0..rounds)
                    .map(|seed| round(&policies, name, workers, moves, seed as u64))
                    .collect::<Result<_, _>>()?;
                times.sort_by(f64::total_cmp);
                line += &format!(" {:>10.0}", times[times.len() / 2]);
            }
            println!("{line}");
        }
    }
    Ok(())
}

/// Measures one round of decisions of a policy. `moves`: true if workers have host memory and pools, and pull from each
/// other.
fn round(
    policies: &PolicyTable,
    name: &str,
    workers: u32,
    moves: bool,
    seed: u64,
) -> Result<f64, kvatlas_routing::Error> {
    let config = Config { queue_limit: 0, ..Config::default() };
    let mut router = Router::new(config, policies.make(name, Options::default(), seed)?);
    for worker in 0..workers {
        let worker = router.add_worker(&format!("worker-{worker}"), 0, 1.0, 0.0);
        let capacity_blocks = Some((2 * OPEN * BLOCKS) as f64 / f64::from(workers.min(64)));
        router.report(worker, &Load { capacity_blocks, ..Load::default() }, 0.0);
        if moves {
            router.set_pulls(worker, Some("all"), 0.0);
        }
    }
    let prompts: Vec<Vec<u64>> = (0..PROMPTS)
        .map(|prompt| (0..BLOCKS as u64).map(|block| if block < 100 { block } else { prompt << 32 | block }).collect())
        .collect();
    let mut depths = Depths::default();
    let mut open = VecDeque::new();
    let (warm, measured) = (512, 4_096);
    let (mut now, mut spent) = (0.0, Vec::with_capacity(measured));
    for number in 0..warm + measured {
        now += 0.5 / f64::from(workers);
        for worker in (0..workers).filter(|_| moves) {
            router.heard(WorkerId(worker), now);
        }
        let request = Request {
            tells: true,
            tokens: BLOCKS as u32 * 16 + 7,
            block_size: 16,
            content_hashes: &prompts[number % prompts.len()],
            ..Request::default()
        };
        let started = Instant::now();
        depths.begin();
        for worker in (number as u32 % 4..workers).step_by(4) {
            depths.set(worker, Depth { device: BLOCKS as u32 / 2, ..Depth::default() });
            if moves {
                let blocks = BLOCKS as u32 - worker % 64;
                depths.set_loadable(worker, blocks - 64, blocks, blocks);
            }
        }
        let outcome = router.choose(&request, &depths, now);
        if number >= warm {
            spent.push(started.elapsed().as_nanos() as f64);
        }
        let Outcome::Placed(decision) = outcome else { panic!("nobody waits: {outcome:?}") };
        open.push_back(decision.id);
        if open.len() > 64 {
            router.first_token(open[open.len() - 64], now);
        }
        if open.len() > OPEN {
            router.finish(open[0], Usage::default(), now);
            open.pop_front();
        }
    }
    // The median, since a mean includes the machine's other work.
    spent.sort_by(f64::total_cmp);
    Ok(spent[measured / 2])
}
