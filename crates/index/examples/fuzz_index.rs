//! Differential fuzzing of the index against the reference, for as long as one likes.

#[path = "../tests/streams/mod.rs"]
mod streams;

fn main() {
    kvatlas_testing::fuzz(|seed| {
        let plan = streams::plan(seed, 20 + (seed % 17) as usize * 40);
        streams::check(&plan, true).map_err(|difference| format!("{}\n{}", difference.what, difference.listing()))
    });
}
