//! Benchmark of the prefix table with the measures that AIBrix publishes: time of a match, time of an event, memory of
//! an entry.
//!
//! Blocks have 64 bytes (16 tokens); a match includes hashing its tokens, as in AIBrix's measurement. AIBrix's own
//! figures are printed as well: as published, and as measured on a similar machine.

use std::hint::black_box;
use std::time::Instant;

use kvatlas_trees::prefix_table::{Config, SyncPrefixHashTable};

const BLOCK: usize = 64;
const MODEL: &str = "model";

fn table(max_prefixes: usize) -> SyncPrefixHashTable {
    let mut config = Config::default();
    (config.block_size, config.max_prefixes_per_context, config.seed) = (BLOCK, max_prefixes, Some(1));
    SyncPrefixHashTable::new(config).expect("usable limits")
}

/// Tokens of a prompt of `blocks` blocks, as bytes; different for each `number`.
fn prompt(number: u64, blocks: usize) -> Vec<u8> {
    let words = (0..blocks as u64 * 8).map(|i| (number << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_be_bytes).collect()
}

/// Median time of several runs of a function, in microseconds.
fn median(runs: usize, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[runs / 2]
}

fn full_hit(blocks: usize, pods: usize) -> (f64, f64) {
    let table = table(1 << 20);
    let names: Vec<String> = (0..pods).map(|pod| format!("pod-{pod}")).collect();
    let tokens = prompt(1, blocks);
    let parts: Vec<&[u8]> = tokens.chunks(BLOCK).collect();
    let engine: Vec<u64> = (0..blocks as u64).map(|i| i * 0x1234_5678_9abc_def1).collect();
    for name in &names {
        table.process_block_stored(MODEL, -1, name, None, &engine, &parts).expect("a good event");
    }
    let ready: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = table.match_prefix(MODEL, -1, &tokens, Some(&ready)).0;
    assert!(found.len() == pods && found.iter().all(|(_, percent)| *percent == 100));
    let whole = median(2001, || _ = black_box(table.match_prefix(MODEL, -1, black_box(&tokens), Some(&ready))));
    let hashing = median(2001, || _ = black_box(table.get_prefix_hashes(black_box(&tokens))));
    (whole, hashing)
}

/// Time of an event with `blocks` new blocks, in microseconds, while a context (model with adapter) fills to a million
/// blocks or stays at its limit: the mean, which includes the table's growth, and the median over every 16 events,
/// which excludes other work of the machine.
fn event(blocks: usize, max_prefixes: usize, events: usize) -> (f64, f64) {
    let table = table(max_prefixes);
    let mix = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let made: Vec<(Vec<u64>, Vec<u8>)> = (0..events as u64)
        .map(|number| ((0..blocks as u64).map(|i| mix(number << 20 | i)).collect(), prompt(number, blocks)))
        .collect();
    let made: Vec<(&[u64], Vec<&[u8]>)> =
        made.iter().map(|(engine, tokens)| (&**engine, tokens.chunks(BLOCK).collect())).collect();
    let mut some = made.chunks_exact(16);
    let mut spent = 0.0;
    let middle = median(some.len(), || {
        let start = Instant::now();
        for (engine, parts) in some.next().unwrap_or_default() {
            table.process_block_stored(MODEL, -1, "pod-0", None, engine, parts).expect("a good event");
        }
        spent += start.elapsed().as_secs_f64() * 1e6;
    });
    (spent / events as f64, middle / 16.0)
}

/// Memory of an entry (a prefix with its holders), in bytes, while a table grows to a million entries: the maximum and
/// the mean.
fn bytes(pods: usize, agree: bool) -> (f64, f64) {
    let table = table(1 << 20);
    let (mut most, mut sum, mut looked) = (0_f64, 0.0, 0);
    for number in 0..32_768 {
        let tokens = prompt(number, 16);
        let parts: Vec<&[u8]> = tokens.chunks(BLOCK).collect();
        for pod in 0..pods as u64 {
            let own = if agree { 0 } else { pod << 56 };
            let engine: Vec<u64> = (0..16).map(|i| (number * 16 + i + 1) ^ own).collect();
            table.process_block_stored(MODEL, -1, &format!("pod-{pod}"), None, &engine, &parts).expect("a good event");
        }
        if number >= 1024 && number % 64 == 0 {
            let stats = table.stats();
            let each = stats.bytes as f64 / stats.prefixes as f64;
            (most, sum, looked) = (most.max(each), sum + each, looked + 1);
        }
    }
    (most, sum / f64::from(looked))
}

#[expect(clippy::print_stdout, reason = "the table is what this is for")]
fn main() {
    let mut bars = Vec::new();
    println!("{:<62} {:>10} {:>24}", "64-byte blocks", "here", "AIBrix, as measured");
    for (blocks, pods, theirs) in [
        (64, 1, "7 us"),
        (64, 8, "17 us"),
        (512, 8, "130 us"),
        (2048, 1, "220 us"),
        (2048, 8, "560 us"),
        (2048, 64, "4000 us"),
    ] {
        let (whole, hashing) = full_hit(blocks, pods);
        let what = format!("match of {blocks} blocks, {pods} pods, tokens to answer");
        println!("{what:<62} {whole:>7.1} us {theirs:>24}");
        println!("{:<62} {hashing:>7.1} us", "    of that, hashing");
        if (blocks, pods) == (2048, 8) {
            bars.push(("a full hit of 2,048 blocks over 8 pods, us", whole, 60.0));
        }
    }
    for (blocks, theirs) in [(1, "1.6 us"), (16, "24 us"), (128, "140 us")] {
        let (mean, middle) = event(blocks, 1 << 20, (1 << 20) / blocks.max(4));
        if blocks == 16 {
            bars.push(("an event of 16 new blocks, growing to a million: mean, us", mean, 2.4));
            bars.push(("    the same: median, us", middle, 2.4));
        }
        let what = format!("stored event of {blocks} new blocks, up to a million: mean");
        println!("{what:<62} {mean:>7.2} us {theirs:>24}");
        println!("{:<62} {middle:>7.2} us", "    the same: median");
        let (mean, middle) = event(blocks, 10_000, (1 << 18) / blocks);
        if blocks == 16 {
            bars.push(("    the same in a full context of 10,000, the default: mean, us", mean, 2.4));
            bars.push(("    the same: median, us", middle, 2.4));
        }
        println!("{:<62} {mean:>7.2} us", "    in a full context of 10,000: mean");
        println!("{:<62} {middle:>7.2} us", "    the same: median");
    }
    for (pods, agree, what, theirs) in [
        (1, true, "bytes an entry by events, 1 pod: average, most", "479"),
        (8, true, "the same, 8 pods that agree on names", "759"),
        (8, false, "the same, 8 pods with names of their own", ""),
    ] {
        let (most, average) = bytes(pods, agree);
        println!("{what:<62} {average:>4.0} {most:>5.0} {theirs:>24}");
        if agree {
            bars.push((what, most, 64.0));
        }
    }
    println!("AIBrix as published: ~200 ns an insert, ~150 ns a lookup, ~64 bytes an entry");
    println!(
        "\n{:<62} {:>10} {:>10}",
        "bars: a tenth of what AIBrix's takes, and its published bytes", "here", "at most"
    );
    for (what, here, most) in bars {
        let verdict = if here <= most { "" } else { "  over the bar" };
        println!("{what:<62} {here:>10.2} {most:>10.1}{verdict}");
    }
}
