//! Random batches, whole and damaged: a short run of what `examples/fuzz_wire.rs` does for as long as one likes.

mod mutations;

#[test]
fn random_batches_whole_and_damaged() {
    let seeds = std::env::var("KVATLAS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4_000);
    for seed in 0..seeds {
        if let Err(what) = mutations::check(seed) {
            panic!("seed {seed}: {what}");
        }
    }
}
