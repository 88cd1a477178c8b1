//! Building blocks for routing policies of this crate and of others, including tables of terms that serve both to
//! choose a candidate and to explain the choice.

pub mod draw;
pub mod ring;

use crate::policy::Terms;

/// Builds the table of the terms (summands of the cost) of `rows` candidates. `weigh` returns the terms of one
/// candidate; the last term is the value by which candidates are compared.
pub fn sheet<const N: usize>(names: [&'static str; N], rows: usize, weigh: impl FnMut(usize) -> [f64; N]) -> Terms {
    Terms { names: names.to_vec(), values: (0..rows).flat_map(weigh).collect() }
}

/// Last column of a table of terms: the values by which candidates are compared.
pub fn compared(terms: &Terms) -> Vec<f64> {
    let width = terms.names.len().max(1);
    terms.values.iter().skip(width - 1).step_by(width).copied().collect()
}

/// Returns `value`, or `otherwise` if `value` is not finite, which means unknown.
pub fn known(value: f64, otherwise: f64) -> f64 {
    if value.is_finite() { value } else { otherwise }
}

/// Returns `value` if it can be used as a divisor, that is if it is finite and positive; 1 otherwise.
pub fn weight(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 1.0 }
}

/// Mean of the values; 0 if there are none.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}
