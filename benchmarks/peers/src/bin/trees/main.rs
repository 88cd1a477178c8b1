//! StringTree and TokenTree beside those of `kv-index`: one process, in turn, medians.
//!
//! `cargo run --release --manifest-path benchmarks/peers/Cargo.toml --bin trees -- [--requests N] [--rounds N]
//! [--entries N] [--trace FILE|generated]`

// Shared with the other benchmark, which uses more of them.
#[allow(dead_code)]
#[path = "../../alloc.rs"]
mod alloc;
mod measure;
mod render;
#[allow(dead_code)]
#[path = "../../rng.rs"]
mod rng;
mod subjects;
#[allow(dead_code)]
#[path = "../../trace.rs"]
mod trace;

use measure::{Load, Times};
use render::Vocabulary;
use subjects::{OurText, OurTokens, PeerText, PeerTokens, Subject};

#[global_allocator]
static ALLOCATOR: alloc::CountingAllocator = alloc::CountingAllocator;

const SEED: u64 = 42;
const WORKERS: usize = 16;

/// Keeps freed memory in the process. A router's tree lives long: what it frees it uses again. Here trees come and go,
/// and whether the system allocator gives their memory back, to fault it in again page by page for the next one, depends
/// on the order in which a tree frees, and hides what is measured.
fn keep_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        const TRIM_THRESHOLD: i32 = -1;
        const MMAP_THRESHOLD: i32 = -3;
        // SAFETY: glibc's own setting of its allocator, called before there is a second thread.
        unsafe {
            mallopt(TRIM_THRESHOLD, i32::MAX);
            mallopt(MMAP_THRESHOLD, 1 << 30);
        }
    }
}

struct Options {
    requests: usize,
    rounds: usize,
    entries: usize,
    trace: Option<std::path::PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { requests: 2_000, rounds: 7, entries: 1_000_000, trace: None };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(format!("{name} needs a value"))?;
        let number = || value.parse::<usize>().map_err(|_| format!("{name} needs a number, not {value:?}"));
        match name.as_str() {
            "--requests" => options.requests = number()?.max(1),
            "--rounds" => options.rounds = number()?.max(1),
            "--entries" => options.entries = number()?,
            "--trace" => options.trace = Some(value.into()),
            _ => return Err(format!("{name}: it is --requests, --rounds, --entries or --trace")),
        }
    }
    Ok(options)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(what: &str, ours: f64, theirs: f64, unit: &str, bar: f64) {
    let ratio = ours / theirs;
    let verdict = if ratio <= bar { "" } else { "  over the bar" };
    println!("{what:<44} {ours:>10.2} {theirs:>10.2} {unit:<5} {ratio:>6.3} (bar {bar}){verdict}");
}

fn pair<Ours: Subject, Theirs: Subject<Key = Ours::Key>, K: AsRef<Ours::Key> + Sync>(
    name: &str,
    load: &Load<K>,
    rounds: usize,
) {
    for threads in [1, 8] {
        let mut all: [Vec<Times>; 2] = Default::default();
        for round in 0..rounds {
            // Who goes first changes.
            for turn in [round % 2, 1 - round % 2] {
                let times = if turn == 0 {
                    measure::times::<Ours, K>(load, threads)
                } else {
                    measure::times::<Theirs, K>(load, threads)
                };
                all[turn].push(times);
            }
        }
        let [ours, theirs] = all;
        // One after the other everybody must find the same; beside each other what is found depends on who was first.
        assert_eq!(ours[0].matched[0], theirs[0].matched[0], "full matches differ");
        assert!(threads > 1 || ours[0].matched == theirs[0].matched, "matches differ");
        for (what, get) in [
            ("insert", (|t| t.insert) as fn(&Times) -> f64),
            ("match", |t| t.matching),
            ("match and insert", |t| t.both),
        ] {
            let of = |times: &[Times]| median(times.iter().map(get).collect());
            row(&format!("{name}, {what}, {threads} thread(s)"), of(&ours), of(&theirs), "us", 0.7);
        }
    }
    let (ours, theirs) = (measure::bytes::<Ours, K>(load), measure::bytes::<Theirs, K>(load));
    row(&format!("{name}, bytes"), ours as f64 / 1e6, theirs as f64 / 1e6, "MB", 0.7);
}

fn evictions<Ours: Subject, Theirs: Subject<Key = Ours::Key>, K: AsRef<Ours::Key> + Sync>(
    name: &str,
    load: &Load<K>,
    rounds: usize,
) {
    let mut all: [Vec<[f64; 3]>; 2] = Default::default();
    for _ in 0..rounds {
        all[0].push(measure::evictions::<Ours, K>(load));
        all[1].push(measure::evictions::<Theirs, K>(load));
    }
    for (at, what) in ["1 % of all", "then 10 % of all", "then half of a tenant's"].iter().enumerate() {
        let of = |times: &[[f64; 3]]| median(times.iter().map(|t| t[at]).collect());
        row(&format!("{name}, evict {what}"), of(&all[0]), of(&all[1]), "ms", 0.1);
    }
}

fn main() -> Result<(), String> {
    keep_memory();
    let options = options()?;
    let trace = trace::Trace::find(options.trace.as_deref(), SEED)?;
    let requests = &trace.requests[..options.requests.min(trace.requests.len())];
    let vocabulary = Vocabulary::new(SEED);
    let tenants = measure::route(requests, WORKERS, SEED);
    let mut tokens: Vec<Vec<u32>> = requests.iter().map(|ids| vocabulary.tokens(ids)).collect();
    let texts: Vec<String> = requests.iter().map(|ids| vocabulary.text(ids)).collect();
    tokens.iter_mut().for_each(|t| Vocabulary::scatter(t));
    let (count, bytes) = (tokens.iter().map(Vec::len).sum::<usize>(), texts.iter().map(String::len).sum::<usize>());
    let chars: usize = texts.iter().map(|t| t.chars().count()).sum();
    let other: usize = texts.iter().map(|t| t.bytes().filter(|b| !b.is_ascii()).count()).sum();
    println!(
        "{}: {} requests of {} tokens; {:.2} characters a token, {:.1} % of the bytes not ASCII; {WORKERS} workers",
        trace.source,
        requests.len(),
        count / requests.len(),
        chars as f64 / count as f64,
        100.0 * other as f64 / bytes as f64
    );
    println!("{:<44} {:>10} {:>10} {:<5} {:>6}", "", "kvatlas", "kv-index", "", "ratio");
    let texts = Load { keys: texts, tenants: tenants.clone() };
    pair::<OurText, PeerText, _>("text", &texts, options.rounds);
    drop(texts);
    let tokens = Load { keys: tokens, tenants };
    pair::<OurTokens, PeerTokens, _>("tokens", &tokens, options.rounds);
    drop(tokens);

    if options.entries > 0 {
        let entries = 0..options.entries as u64;
        let tenants: Vec<String> = entries.clone().map(|i| format!("w{}", rng::mix(i) as usize % WORKERS)).collect();
        let prompt = |i: u64| format!("system prompt {} / user {:x}: question", rng::mix(i) % 1000, rng::mix(i ^ 77));
        let texts = Load { keys: entries.clone().map(prompt).collect::<Vec<String>>(), tenants: tenants.clone() };
        evictions::<OurText, PeerText, _>("text", &texts, options.rounds.min(3));
        drop(texts);
        let prompt = |i: u64| {
            let (system, user) = (rng::mix(i) as u32 % 1000, rng::mix(i ^ 77) as u32 % 128_000);
            (0..48).map(|n| if n < 16 { system + n } else { (user + n * n) % 128_000 }).collect()
        };
        let tokens = Load { keys: entries.map(prompt).collect::<Vec<Vec<u32>>>(), tenants };
        evictions::<OurTokens, PeerTokens, _>("tokens", &tokens, options.rounds.min(3));
    }
    Ok(())
}
