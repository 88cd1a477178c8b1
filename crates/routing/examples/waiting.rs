//! A benchmark of decisions while requests wait in the router, medians in nanoseconds: a `Router::choose`, a
//! `Router::bind` that finds no room, and for each request that one places.
//!
//! `cargo run --release -p kvatlas-routing --example waiting`. Prompts of 750 blocks of 16 tokens; a quarter of the workers
//! hold half of each. Arrivals are as fast as first tokens, so the number that waits stays as it is.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::collections::VecDeque;
use std::time::Instant;

use kvatlas_routing::{Config, Depth, Depths, Options, Outcome, Request, RequestId, Router, Usage, WorkerId, by_name};

const BLOCKS: usize = 750;
const PROMPTS: u64 = 512;

fn main() -> Result<(), kvatlas_routing::Error> {
    println!("{:>8} {:>8} {:>12} {:>12} {:>12}", "workers", "waiting", "choose (ns)", "bind (ns)", "placed (ns)");
    for workers in [8, 64, 1_000] {
        for waiting in [0, 100, 2_000] {
            round(workers, waiting)?;
        }
    }
    Ok(())
}

fn round(workers: u32, waiting: usize) -> Result<(), kvatlas_routing::Error> {
    let config = Config { queue_timeout: 1e6, queue_limit: 1 << 20, ..Config::default() };
    let mut router = Router::new(config, by_name("kvatlas", Options::default(), 1)?);
    let all: Vec<WorkerId> =
        (0..workers).map(|worker| router.add_worker(&format!("worker-{worker}"), 0, 1.0, 0.0)).collect();
    let prompts: Vec<Vec<u64>> = (0..PROMPTS)
        .map(|prompt| (0..BLOCKS as u64).map(|block| if block < 100 { block } else { prompt << 32 | block }).collect())
        .collect();
    let mut depths = Depths::default();
    let mut running: VecDeque<RequestId> = VecDeque::new();
    let (mut now, mut number) = (0.0, 0);
    let (mut choosing, mut binding, mut placing, mut placed) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let measured = 1_000;
    while choosing.len() < measured {
        let fill = router.waiting() < waiting && choosing.is_empty();
        if !fill {
            now += 0.5 / f64::from(workers);
            if let Some(id) = running.pop_front() {
                router.first_token(id, now);
                router.finish(id, Usage { output_tokens: Some(100), ..Usage::default() }, now);
            }
            let started = Instant::now();
            let bound = router.bind(now);
            let took = started.elapsed().as_secs_f64();
            match bound.len() {
                0 => binding.push(took),
                count => placing.push(took / count as f64),
            }
            placed += bound.len();
            running.extend(bound.iter().map(|(id, _)| *id));
        }
        number += 1;
        let request = Request {
            tokens: BLOCKS as u32 * 16 + 7,
            block_size: 16,
            content_hashes: &prompts[number % prompts.len()],
            ..Request::default()
        };
        depths.begin();
        for worker in (number as u32 % 4..workers).step_by(4) {
            depths.set(worker, Depth { device: BLOCKS as u32 / 2, ..Depth::default() });
        }
        let started = Instant::now();
        let outcome = router.choose_among(&request, &depths, Some(&all), now);
        if !fill {
            choosing.push(started.elapsed().as_secs_f64());
        }
        if let Outcome::Placed(decision) = outcome {
            running.push_back(decision.id);
        }
    }
    println!(
        "{workers:>8} {waiting:>8} {:>12.0} {:>12.0} {:>12.0}   {placed} placed of those that waited, {} wait at the end",
        median(choosing),
        median(binding),
        median(placing),
        router.waiting()
    );
    Ok(())
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).map_or(f64::NAN, |median| median * 1e9)
}
