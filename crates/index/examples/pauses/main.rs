//! Pauses: how long one event holds the writer, as a histogram for each workload at millions of held blocks, and for
//! events that were chosen to be as bad as can be. Names the longest.
//!
//! `cargo run --release -p kvatlas-index --features jemalloc --example pauses [-- --blocks 10000000] [--only NAME]`
//!
//! With jemalloc, as what is released has it (on Linux on x86-64; elsewhere leave that out). The system's allocator takes up
//! to some ten milliseconds now and then, to give back memory or to put together what is free.
//!
//! Every event is timed alone, in the thread that applies it, by the processor time of that thread: what others on the
//! machine took of the wall clock is none of the index's doing. The same by the wall clock stands beside the longest. Of what
//! is made in parts, the time is shown that another thread waits meanwhile who wants to change something: by the wall clock.

mod engines;
mod nasty;
mod times;

use kvatlas_index::{BlockIndex, Config};

use engines::{Fleet, Shape};
use times::Times;

#[cfg(all(feature = "jemalloc", target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The workloads: `blocks` held by all engines together.
fn shapes(blocks: u64) -> [Shape; 4] {
    let shape = |name, engines, copies, own_names| Shape { name, engines, copies, own_names, blocks };
    [
        shape("one copy", 32, 1, false),
        shape("32 copies", 1_000, 32, false),
        shape("32 copies, own names", 1_000, 32, true),
        shape("100 copies", 10_000, 100, false),
    ]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    let Ok(blocks) = after("--blocks").map_or(Ok(10_000_000), |text| text.parse()) else {
        eprintln!("--blocks: a whole number");
        std::process::exit(2);
    };
    let wanted = |name: &str| after("--only").is_none_or(|only| only == name);
    let mut all = Times::new("all events");
    eprintln!("{}", Times::heading());
    for shape in shapes(blocks).into_iter().filter(|shape| wanted(shape.name)) {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        let mut fleet = Fleet::new(&shape);
        let mut times = Times::new(&format!("{}: filling", shape.name));
        while !fleet.is_full() {
            fleet.request(&index, &mut times);
        }
        times.tell(&mut all);
        let mut times = Times::new(&format!("{}: full", shape.name));
        (0..200_000 / u64::from(shape.copies)).for_each(|_| fleet.request(&index, &mut times));
        times.tell(&mut all);
    }
    if wanted("nasty") {
        nasty::all(blocks, &mut all);
    }
    all.clone().tell(&mut all);
}
