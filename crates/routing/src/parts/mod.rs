//! Building blocks of policies, for those of this crate and others, and tables of terms that serve both the choice and
//! its explanation. Nothing here depends on a policy.

pub mod draw;
pub mod ring;

use crate::policy::Terms;

/// Builds the table of terms of `rows` candidates. `weigh` returns the terms of one row; the last one is the value
/// compared.
pub fn sheet<const N: usize>(names: [&'static str; N], rows: usize, weigh: impl FnMut(usize) -> [f64; N]) -> Terms {
    Terms { names: names.to_vec(), values: (0..rows).flat_map(weigh).collect() }
}

/// Last column of a table of terms: the values by which rows are compared.
pub fn compared(terms: &Terms) -> Vec<f64> {
    let width = terms.names.len().max(1);
    terms.values.iter().skip(width - 1).step_by(width).copied().collect()
}

/// `value`, or `otherwise` if it is not finite, which means unknown.
pub fn known(value: f64, otherwise: f64) -> f64 {
    if value.is_finite() { value } else { otherwise }
}

/// `value` as a divisor: 1 unless it is finite and above 0.
pub fn weight(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 1.0 }
}

/// Mean of the values; 0 if there are none.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}
