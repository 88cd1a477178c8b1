//! The index against the reference model, on random streams with holes, orphans, copies, replaced names, cycles,
//! clears, drops, ranks and tiers. `make fuzz` runs the same for longer.

mod streams;

#[test]
fn equals_the_reference_on_random_streams() {
    for seed in 0..kvatlas_testing::seeds(600) {
        let plan = streams::plan(seed, 40 + seed as usize % 200);
        if let Err(difference) = streams::check(&plan, true) {
            panic!("seed {seed}: {}\n{}", difference.what, difference.listing());
        }
    }
}
