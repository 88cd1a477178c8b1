//! A plan: what happens to an index, and when. Columns, because a plan has millions of operations.

mod checked;
mod columns;
mod file;
mod format;
mod ops;
#[cfg(test)]
mod tests;

pub use checked::{Facts, Plan};
pub use columns::{Columns, Kind};
pub use ops::Op;
