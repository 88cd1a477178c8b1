//! Fuzzing of the decoder, for as long as one likes: random batches, whole, cut, damaged, and nonsense.

#[path = "../tests/mutations.rs"]
mod mutations;

fn main() {
    kvatlas_testing::fuzz(mutations::check);
}
