//! Parts that policies are made of, here and elsewhere, and a table of terms, computed once for the choice and for who asks
//! why. Nothing in here knows a policy.

pub mod draw;
pub mod ring;

use crate::policy::Terms;

/// The terms of `rows` candidates: `weigh` gives those of one row, the last of which is what is compared.
pub fn sheet<const N: usize>(names: [&'static str; N], rows: usize, weigh: impl FnMut(usize) -> [f64; N]) -> Terms {
    Terms { names: names.to_vec(), values: (0..rows).flat_map(weigh).collect() }
}

/// Returns the last column of a table of terms: what rows are compared by.
pub fn compared(terms: &Terms) -> Vec<f64> {
    let width = terms.names.len().max(1);
    terms.values.iter().skip(width - 1).step_by(width).copied().collect()
}

/// `value`, or `otherwise` where it is not known.
pub fn known(value: f64, otherwise: f64) -> f64 {
    if value.is_finite() { value } else { otherwise }
}

/// A weight as it can be divided by: 1 where it is not above 0.
pub fn weight(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 1.0 }
}

/// The mean; 0 of nothing.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}
