//! From an engine's socket through a relay, `nats-server` and a reader to the reader's index: blocks a second, and how long
//! one takes at 20,000 blocks a second. All of it in this process, but for `nats-server`:
//! `relay [MILLION_BLOCKS]`

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_follow::state::Stream;
use kvatlas_follow::{Config, Follower};
use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::{Batch, Event, Name, Removed, Stored};

type Failure = Box<dyn std::error::Error>;

/// Blocks of a batch.
const BLOCKS: u64 = 64;
/// Batches after which an engine's cache is full, and evicts as much as it stores.
const CACHE: u64 = 4096;
/// Blocks a second when latency is measured.
const RATE: u64 = 20_000;

fn main() -> Result<(), Failure> {
    let millions: u64 = std::env::args().nth(1).map_or(Ok(2), |text| text.parse())?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let directory = std::env::temp_dir().join(format!("kvatlas-relay-{}", std::process::id()));
    let mut nats = Command::new("nats-server")
        .args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"])
        .arg(&directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let measured = measure(&format!("nats://127.0.0.1:{port}"), millions);
    nats.kill()?;
    nats.wait()?;
    std::fs::remove_dir_all(directory)?;
    measured
}

fn start(relay: &str, url: &str) -> Result<Follower, kvatlas_follow::Error> {
    let json = format!(
        r#"{{ "log": {{ "level": "warning" }}, "adopt": {{ "share": 0 }},
             "streams": {{ "threads": 1 }}, "snapshot": {{ "every": 2 }},
             "relay": {{ {relay}: "{url}", "buffer_bytes": 1000000000, "in_memory": true }} }}"#
    );
    Follower::start(Config::from_json(&json)?, false)
}

/// Starts a service, and measures how long it takes until it is sure of what the engine holds.
fn starts(how: &str, relay: &str, url: &str) -> Result<Follower, Failure> {
    let begun = Instant::now();
    let service = start(relay, url)?;
    let is_sure = |service: &Follower| {
        let worker = service.fleet().workers().into_iter().next()?;
        worker.streams.first().map(|(_, stream)| stream.status.is_trusted())
    };
    while is_sure(&service) != Some(true) {
        std::thread::sleep(Duration::from_millis(1));
        if begun.elapsed() > Duration::from_secs(60) {
            return Err("a reader that starts does not become sure".into());
        }
    }
    let (blocks, seconds) = (CACHE * BLOCKS, begun.elapsed().as_secs_f64());
    say(&format!("a reader that starts has {blocks} blocks after {seconds:.2} s, {how}"));
    Ok(service)
}

fn measure(url: &str, millions: u64) -> Result<(), Failure> {
    let context = zmq::Context::new();
    let publisher = context.socket(zmq::PUB)?;
    publisher.set_sndhwm(0)?;
    publisher.bind("tcp://127.0.0.1:*")?;
    let endpoint = publisher.get_last_endpoint()?.map_err(|_| "an address in UTF-8")?;
    let start = |relay: &str| start(relay, url);
    let (relay, reader) = (start(r#""publish""#)?, start(r#""from""#)?);
    relay.register(
        &format!(r#"{{ "instance_id": "w", "endpoint": "{endpoint}", "model_name": "m", "block_size": 16 }}"#),
        None,
    )?;
    let batches = millions * 1_000_000 / BLOCKS;
    let payloads: Vec<Vec<u8>> = (0..batches).map(batch).collect();
    let bytes: usize = payloads.iter().map(Vec::len).sum();
    let mut seq = 0_u64;
    let mut send = |payload: &[u8]| -> Result<(), Failure> {
        publisher.send_multipart([&b""[..], &seq.to_be_bytes()[..], payload], 0)?;
        seq += 1;
        Ok(())
    };
    let stream = wait(&reader, &mut send)?;
    let before = stored(&stream);
    let begun = Instant::now();
    for payload in &payloads {
        send(payload)?;
    }
    let sent = begun.elapsed();
    while stored(&stream) < before + batches * BLOCKS {
        std::thread::sleep(Duration::from_millis(1));
        if begun.elapsed() > Duration::from_secs(120) {
            return Err(format!("only {} blocks are visible: {:?}", stored(&stream) - before, stream.status).into());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rate = (batches * BLOCKS) as f64 / seconds / 1e6;
    say(&format!(
        "{url}: {rate:.2} million blocks/s from the engine's socket to visible ({seconds:.2} s, sent in {:.2} s, {:.0} MB)",
        sent.as_secs_f64(),
        bytes as f64 / 1e6
    ));
    let mut expected = stored(&stream);
    let pause = Duration::from_secs_f64(BLOCKS as f64 / RATE as f64);
    let (mut late, first) = (Vec::new(), Instant::now());
    for (at, number) in (batches..batches + 3000).enumerate() {
        let due = first + pause * at as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let payload = batch(number);
        let at = Instant::now();
        send(&payload)?;
        expected += BLOCKS;
        while stored(&stream) < expected && at.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_micros(50));
        }
        late.push(at.elapsed().as_secs_f64() * 1e3);
    }
    late.sort_by(f64::total_cmp);
    let of = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
    let (half, most, all) = (of(0.5), of(0.99), of(1.0));
    say(&format!("at {RATE} blocks/s, from sent to visible: p50 {half:.2} ms, p99 {most:.2} ms, max {all:.2} ms"));
    drop(starts("from the relay", r#""from""#, url)?);
    if url.starts_with("nats://") {
        let keeper = start(r#""snapshots": true, "from""#)?;
        std::thread::sleep(Duration::from_secs(6));
        drop(starts("from the snapshot in the object store", r#""snapshots": true, "from""#, url)?);
        drop(keeper);
    }
    Ok(())
}

/// A batch of one chain of its own, and the eviction of an old one.
fn batch(number: u64) -> Vec<u8> {
    let name = |number: u64, at: u64| Name::from((number * BLOCKS + at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let names = |number: u64| (0..BLOCKS).map(|at| name(number, at)).collect::<Vec<_>>();
    let tokens = (0..16 * BLOCKS).map(|at| (number * 7919 + at * 31) as u32 % 128_000).collect();
    let stored = Stored { block_hashes: names(number), tokens, block_size: 16, ..Stored::default() };
    let mut events = vec![Event::Stored(stored.into())];
    if let Some(old) = number.checked_sub(CACHE) {
        let block_hashes = names(old).into_iter().rev().collect();
        events.insert(0, Event::Removed(Removed { block_hashes, ..Removed::default() }));
    }
    encode(&Batch { events, rank: Some(0), ..Batch::default() }, Dialect::Vllm)
}

/// Publishes now and then until the reader hears it.
fn wait(reader: &Follower, send: &mut impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<Arc<Stream>, Failure> {
    for _ in 0..600 {
        let worker = reader.fleet().workers().into_iter().next();
        let stream = worker.and_then(|worker| Some(worker.streams.first()?.1.clone()));
        if let Some(stream) = stream.filter(|stream| stream.status.is_trusted()) {
            std::thread::sleep(Duration::from_millis(500));
            return Ok(stream);
        }
        send(&encode(&Batch::default(), Dialect::Vllm))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Err("the reader has not heard anything".into())
}

fn stored(stream: &Stream) -> u64 {
    stream.status.counters.stored_blocks.load(std::sync::atomic::Ordering::Relaxed)
}

#[expect(clippy::print_stdout, reason = "that is what it is for")]
fn say(line: &str) {
    println!("{line}");
}
