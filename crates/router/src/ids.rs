//! Random numbers and request ids, unique across routers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::header::HeaderValue;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Returns a random number that differs, with near certainty, from those that other routers draw.
pub(crate) fn number() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        now ^ u64::from(std::process::id()).rotate_left(40)
    });
    xxh3_64_with_seed(&COUNT.fetch_add(1, Relaxed).to_le_bytes(), seed)
}

/// Returns a new request id: 32 random hexadecimal digits.
pub(crate) fn request_id() -> HeaderValue {
    let words = [number(), number()];
    let mut text = [0; 32];
    for (at, digit) in text.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(words[at / 16] >> (4 * (at % 16)) & 15) as usize];
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_are_alike() {
        let names: std::collections::HashSet<_> = (0..1000).map(|_| super::request_id()).collect();
        assert!(names.len() == 1000 && names.iter().all(|name| name.len() == 32));
    }
}
