//! Differential fuzzing of the index against the reference, for as long as one likes.

#[path = "../tests/streams/mod.rs"]
mod streams;

use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    let number = |flag, default| after(flag).map_or(Ok(default), |text| text.parse::<u64>());
    let (Ok(minutes), Ok(first)) = (number("--minutes", 5), number("--seed", 1 << 32)) else {
        eprintln!("usage: fuzz [--minutes N] [--seed FIRST]   (whole numbers)");
        std::process::exit(2);
    };
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut seed = first;
    while Instant::now() < end {
        let plan = streams::plan(seed, 20 + (seed % 17) as usize * 40);
        if let Err(difference) = streams::check(&plan, true) {
            eprintln!("seed {seed}: {}\n{}", difference.what, difference.listing());
            std::process::exit(1);
        }
        seed += 1;
    }
    eprintln!("{} streams, no difference", seed - first);
}
