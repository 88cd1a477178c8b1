//! Integers parsed eight digits at once (Lemire's SWAR trick).

/// Parses integers of at most eight digits, each followed by a comma and perhaps one space, from the start of an
/// integer on. Returns the position of the first integer in another form.
pub(super) fn usual_tokens(bytes: &[u8], start: usize, into: &mut Vec<u32>) -> usize {
    let mut at = start;
    let mut base = start;
    // Eight bytes can be read from any position in the block.
    while let Some(block) = bytes.get(base..).and_then(|rest| rest.first_chunk::<72>()) {
        let mut stops = 0;
        for (number, eight) in block[..64].as_chunks::<8>().0.iter().enumerate() {
            stops |= others_of(u64::from_le_bytes(*eight)) << (8 * number);
        }
        while stops != 0 {
            let stop = base + stops.trailing_zeros() as usize;
            stops &= stops - 1;
            let digits = stop - at;
            if digits == 0 && at > start && bytes[stop] == b' ' && bytes[at - 1] == b',' {
                at += 1;
                continue;
            }
            let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) else { return at };
            let leading_zero = digits > 1 && eight[0] == b'0';
            if !matches!(digits, 1..=8) || bytes[stop] != b',' || leading_zero {
                return at;
            }
            into.push(number_of(u64::from_le_bytes(*eight) ^ (0x30 * ONES), digits) as u32);
            at = stop + 1;
        }
        base += 64;
    }
    at
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// A mask with a bit for each of eight bytes that is not a digit.
#[inline]
fn others_of(bytes: u64) -> u64 {
    let nibbles = bytes ^ (0x30 * ONES);
    // Without their high bits no byte carries into the next.
    let others = ((nibbles & (0x7f * ONES)) + 0x76 * ONES) | nibbles;
    // The multiplication gathers the eight high bits in the highest byte.
    ((others >> 7) & ONES).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The number of the first (lowest) `digits` of eight digit values; `digits` is at least 1.
#[inline]
fn number_of(nibbles: u64, digits: usize) -> u64 {
    // As if zeros stood in front.
    let value = nibbles << (64 - 8 * digits);
    let value = value.wrapping_mul(10).wrapping_add(value >> 8);
    let low = (value & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((value >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// The number of the leading digits of eight bytes (the first is the lowest), and how many digits there are.
#[inline]
pub(super) fn up_to_eight(bytes: u64) -> (u64, usize) {
    let digits = others_of(bytes).trailing_zeros().min(8) as usize;
    if digits == 0 {
        return (0, 0);
    }
    (number_of(bytes ^ (0x30 * ONES), digits), digits)
}
