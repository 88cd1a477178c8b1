//! Speed from payloads to answers: decoding alone, and decoding with applying to the index, in blocks a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_index::{BlockIndex, Config};
use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::{Batch, Decoder, Event, Identity, Name, Reader, Removed, Stored, Tally};

const BLOCK: u32 = 16;
/// Blocks that the simulated engine has room for.
const POOL: usize = 1 << 16;

struct Load {
    name: &'static str,
    /// Blocks of a store. Each store is a batch of its own, and continues the one before up to 64 blocks.
    blocks: usize,
    vocabulary: u32,
    dialect: Dialect,
    lora: bool,
    digests: bool,
    /// Evict what was stored a pool ago, one block an event.
    evict: bool,
}

const PLAIN: Load = Load {
    name: "",
    blocks: 64,
    vocabulary: 32_000,
    dialect: Dialect::Vllm,
    lora: false,
    digests: false,
    evict: false,
};

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(2.0);
    eprintln!("blocks of {BLOCK} tokens; million blocks stored a second, one core");
    eprintln!("{:<44} {:>10} {:>14} {:>14}", "", "decode", "decode + apply", "under a key");
    let identities = [Identity::public(), Identity::keyed()].map(Arc::new);
    let loads = [
        Load { name: "64-block stores", ..PLAIN },
        Load { name: "64-block stores, 150k vocabulary", vocabulary: 150_000, ..PLAIN },
        Load { name: "64-block stores, SGLang", dialect: Dialect::Sglang, ..PLAIN },
        Load { name: "64-block stores, arrays", dialect: Dialect::VllmArrays, ..PLAIN },
        Load { name: "64-block stores, 32-byte digests", digests: true, ..PLAIN },
        Load { name: "64-block stores, LoRA", lora: true, ..PLAIN },
        Load { name: "64-block stores, evictions one by one", evict: true, ..PLAIN },
        Load { name: "1-block stores", blocks: 1, ..PLAIN },
        Load { name: "1-block stores, LoRA", blocks: 1, lora: true, ..PLAIN },
        Load { name: "1-block stores, evictions one by one", blocks: 1, evict: true, ..PLAIN },
    ];
    let only = std::env::args().nth(2).unwrap_or_default();
    for load in loads.into_iter().filter(|load| load.name.contains(&only)) {
        let payloads = payloads(&load);
        let stored = payloads.len() * load.blocks;
        let decoding = best(seconds, || {
            let mut decoder = Decoder::default();
            let events: usize =
                payloads.iter().map(|payload| decoder.decode(payload).map_or(0, |it| it.events.len())).sum();
            assert!(events >= payloads.len());
        });
        let [all, keyed] = identities.each_ref().map(|identity| {
            best(seconds, || {
                let config = Config { block_size: BLOCK, ..Config::default() };
                let Ok(index) = BlockIndex::new(config) else { return };
                let (mut decoder, mut reader, mut tally) =
                    (Decoder::default(), Reader::new(BLOCK).calling(identity.clone()), Tally::default());
                for payload in &payloads {
                    if let Ok(batch) = decoder.decode(payload) {
                        reader.apply(batch, &index, "engine", 0, &mut tally);
                    }
                }
                assert_eq!((tally.stored_blocks, tally.collisions), (stored as u64, 0));
            })
        });
        let rate = |time: Duration| stored as f64 / time.as_secs_f64() / 1e6;
        eprintln!("{:<44} {:>10.2} {:>14.2} {:>14.2}", load.name, rate(decoding), rate(all), rate(keyed));
    }
    let prompt: Vec<u32> = (0..12_288).collect();
    for (what, identity) in ["content hashes", "words under a key"].iter().zip(&identities) {
        let time = best(seconds, || {
            std::hint::black_box(identity.words(std::hint::black_box(&prompt), BLOCK as usize, None, None));
        });
        eprintln!("{what} of a prompt of {} tokens: {:.1} µs", prompt.len(), time.as_secs_f64() * 1e6);
    }
}

fn payloads(load: &Load) -> Vec<Vec<u8>> {
    let mut random = kvatlas_testing::Random(1);
    let mut next = move || random.next();
    let mut held: Vec<Name> = Vec::new();
    let count = if load.evict { 4 * POOL } else { 2 * POOL };
    let mut parent: Option<Name> = None;
    (0..count / load.blocks)
        .map(|at| {
            if (at * load.blocks).is_multiple_of(64) {
                parent = None;
            }
            let name = |hash: u64| {
                if load.digests { Name::from(hash.to_be_bytes().repeat(4).as_slice()) } else { Name::from(hash) }
            };
            let block_hashes: Vec<Name> = (0..load.blocks).map(|_| name(next())).collect();
            let tokens =
                (0..load.blocks * BLOCK as usize).map(|_| (next() % u64::from(load.vocabulary)) as u32).collect();
            let mut events = Vec::new();
            if load.evict && held.len() >= POOL {
                let gone: Vec<Name> = held.drain(..load.blocks).collect();
                events.extend(gone.into_iter().rev().map(|name| {
                    Event::Removed(Removed {
                        block_hashes: vec![name],
                        medium: Some("GPU".into()),
                        group: Some(0),
                        ..Removed::default()
                    })
                }));
            }
            if load.evict {
                held.extend(block_hashes.iter().cloned());
            }
            let last = block_hashes.last().cloned();
            events.push(Event::from(Stored {
                block_hashes,
                parent: parent.take(),
                tokens,
                block_size: BLOCK,
                medium: Some("GPU".into()),
                lora: load.lora.then(|| "an-adapter".into()),
                group: Some(0),
                kind: Some("full_attention".into()),
                ..Stored::default()
            }));
            parent = last;
            encode(&Batch { timestamp: at as f64, rank: Some(0), events, refused: Vec::new() }, load.dialect)
        })
        .collect()
}

/// The shortest of the runs that fit the time, at least three.
fn best(seconds: f64, mut run: impl FnMut()) -> Duration {
    let begin = Instant::now();
    let mut shortest = Duration::MAX;
    let mut runs = 0;
    while runs < 3 || begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        run();
        shortest = shortest.min(start.elapsed());
        runs += 1;
    }
    shortest
}
