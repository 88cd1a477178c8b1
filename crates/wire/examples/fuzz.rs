//! Fuzzing of the decoder, for as long as one likes: random batches, whole, cut, damaged, and nonsense.

#[path = "../tests/mutations/mod.rs"]
mod mutations;

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
        if let Err(what) = mutations::check(seed) {
            eprintln!("seed {seed}: {what}");
            std::process::exit(1);
        }
        seed += 1;
    }
    eprintln!("{} batches, nothing wrong", seed - first);
}
