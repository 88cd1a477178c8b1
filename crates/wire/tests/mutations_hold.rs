//! Random batches, whole and damaged: a short run of what `examples/fuzz_wire.rs` does for as long as one likes.

mod mutations;

#[test]
fn random_batches_whole_and_damaged() {
    for seed in 0..kvatlas_testing::seeds(4_000) {
        if let Err(what) = mutations::check(seed) {
            panic!("seed {seed}: {what}");
        }
    }
}
