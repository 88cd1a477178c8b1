//! Follows streams and says what that costs: `streams SECONDS EVENTS-ENDPOINT[,REPLAY-ENDPOINT]...`
//!
//! An endpoint may be given as `COUNT*ENDPOINT[,REPLAY]`: so many workers at the same address.

use std::time::{Duration, Instant};

use kvatlas_follow::config::StreamConfig;
use kvatlas_follow::fleet::Fleet;
use kvatlas_follow::state::{Counters, Registration};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(follow(std::env::args().skip(1).collect()))
}

async fn follow(arguments: Vec<String>) -> Result<(), Failure> {
    let seconds: u64 = arguments.first().ok_or("the first argument is a number of seconds")?.parse()?;
    let fleet = Fleet::new(StreamConfig::default(), &[], tokio::runtime::Handle::current());
    for argument in &arguments[1..] {
        let (count, addresses) = argument.split_once('*').unwrap_or(("1", argument));
        let (events, replay) = addresses.split_once(',').map_or((addresses, None), |(e, r)| (e, Some(r)));
        for _ in 0..count.parse::<u32>()? {
            let registration = Registration {
                worker: format!("engine-{}", fleet.workers().len()),
                names: None,
                model: "model".to_owned(),
                routing_group: "default".to_owned(),
                block_size: 16,
                rank: 0,
                endpoint: events.parse()?,
                replay_endpoint: replay.map(str::parse).transpose()?,
                topic: String::new(),
                count_copies: true,
                host_chunk: None,
                source: "example".to_owned(),
            };
            fleet.register(registration).await?;
        }
    }
    let (start, mut before) = (Instant::now(), Vec::new());
    let mut cpu = cpu_seconds();
    while start.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let streams: Vec<_> = fleet.workers().into_iter().flat_map(|worker| worker.streams).collect();
        let trusted = streams.iter().filter(|(_, stream)| stream.status.is_trusted()).count();
        let mut sums = vec![0; Counters::NAMES.len()];
        for (_, stream) in &streams {
            sums.iter_mut().zip(stream.status.counters.values()).for_each(|(sum, value)| *sum += value);
        }
        let changed = Counters::NAMES.iter().zip(&sums).zip(before.iter().chain(std::iter::repeat(&0)));
        let changed = changed.filter(|((_, now), then)| now > then);
        let changed: Vec<_> = changed.map(|(((name, _), now), then)| format!("{name} +{}", now - then)).collect();
        let used = cpu_seconds();
        let percent = (used - cpu) / 5.0 * 100.0;
        say(&format!("{trusted}/{} trusted, CPU {percent:.1} %, {} | {changed:?}", streams.len(), memory()));
        (cpu, before) = (used, sums);
    }
    fleet.stop().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "that is what it is for")]
fn say(line: &str) {
    println!("{line}");
}

/// User and system time of this process, from clock ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let wanted = |line: &&str| line.starts_with("VmRSS") || line.starts_with("Threads");
    status
        .lines()
        .filter(wanted)
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join(", ")
}
