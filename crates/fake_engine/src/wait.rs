//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Waits until `holds`; after a minute the test fails with what `wrong` says.
#[track_caller]
pub fn until(mut holds: impl FnMut() -> bool, wrong: impl FnOnce() -> String) {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > Duration::from_secs(60) {
            panic!("{}", wrong());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `holds`, which `what` says in words.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    until(holds, || format!("it did not come to be: {what}"));
}
