//! Wrappers of processor instructions that prefetch a cache line, or compare eight small integers at once.
//!
//! **Invariant.** All are defined for all arguments, and read nothing but what the arguments refer to. On processors
//! other than x86-64, safe code does the same.
//!
//! **Checked by** the test below, which compares the lanes with a loop; the tests of `writer/names/slots.rs` depend on
//! the comparisons.

/// Prefetches the first cache line of a value; has no other effect.
#[inline]
pub(crate) fn prefetch<T>(it: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing architecturally, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(it).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = it;
}

/// Prefetches all cache lines of a value.
#[inline]
pub(crate) fn prefetch_all<T>(it: &T) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of::<T>()).step_by(64).chain(size_of::<T>().checked_sub(1)) {
        // SAFETY: as above.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<{ _MM_HINT_T0 }>(std::ptr::from_ref(it).cast::<i8>().wrapping_add(at));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = it;
}

/// Bit mask with bit 2 i set for each i with `lanes[i] == wanted`. Takes three instructions instead of about thirty:
/// the table of block hashes calls this for every block stored or removed.
#[inline]
pub(crate) fn equal_lanes(lanes: [u16; 8], wanted: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2.
    let bytes = unsafe {
        use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_set1_epi16};
        _mm_movemask_epi8(_mm_cmpeq_epi16(bytemuck::cast(lanes), _mm_set1_epi16(wanted.cast_signed()))).cast_unsigned()
    };
    #[cfg(not(target_arch = "x86_64"))]
    let bytes = lanes.iter().rev().fold(0, |bytes, &lane| bytes << 2 | u32::from(lane == wanted));
    bytes & 0x5555
}

/// Bit mask with bit 2 i set for each i with `lanes[i] < than`, as signed numbers. All lanes are compared at once, as a
/// branch for each would be unpredictable.
#[inline]
pub(crate) fn lesser_lanes(lanes: [i16; 8], than: i16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2.
    let bytes = unsafe {
        use std::arch::x86_64::{_mm_cmplt_epi16, _mm_movemask_epi8, _mm_set1_epi16};
        _mm_movemask_epi8(_mm_cmplt_epi16(bytemuck::cast(lanes), _mm_set1_epi16(than))).cast_unsigned()
    };
    #[cfg(not(target_arch = "x86_64"))]
    let bytes = lanes.iter().rev().fold(0, |bytes, &lane| bytes << 2 | u32::from(lane < than));
    bytes & 0x5555
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_compared_as_a_loop_does() {
        for wanted in [0, 1, 7, 0xff00, 0xffff] {
            for pattern in 0..256_u32 {
                let lanes = std::array::from_fn(|i| if pattern >> i & 1 == 1 { wanted } else { !wanted });
                let expected = (0..8).filter(|i| pattern >> i & 1 == 1).fold(0, |marks, i| marks | 1 << (2 * i));
                assert_eq!(equal_lanes(lanes, wanted), expected);
                let (lanes, wanted) = (lanes.map(u16::cast_signed), wanted.cast_signed());
                let expected = (0..8).filter(|i| lanes[*i] < wanted).fold(0, |marks, i| marks | 1 << (2 * i));
                assert_eq!(lesser_lanes(lanes, wanted), expected);
            }
        }
    }
}
