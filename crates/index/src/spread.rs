//! How hashes are mixed and spread over the lines of a table.

/// Which of `lines` a hash belongs to: its high bits choose (multiply-shift, so any number of lines will do).
#[inline]
pub(crate) fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// The next line, the first after the last.
#[inline]
pub(crate) fn line_after(line: usize, lines: usize) -> usize {
    if line + 1 == lines { 0 } else { line + 1 }
}

/// Multiplies and folds: the mixing step of wyhash. `secret` keeps who chooses the inputs from choosing the lines.
#[inline]
pub(crate) fn mix(x: u64, y: u64, secret: u64) -> u64 {
    let y = (y ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
    let product = u128::from(x ^ secret) * u128::from(y);
    (product >> 64) as u64 ^ product as u64
}
