//! A plan: the operations on an index, each at its time. Columns, because a plan has millions of operations.

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
