//! Answers to `GET /metrics`: one text shared by simultaneous requests, in two formats, and the metrics of this
//! process.

mod format;
mod process;

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::HeaderMap;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

use self::format::{OPEN_METRICS, TEXT, plain, prefers_text};
use self::process::Process;

/// Appends the metrics of this process, without the end mark of OpenMetrics.
///
/// # Errors
/// If `out` cannot be written to.
pub fn write_process(out: &mut String) -> std::fmt::Result {
    let mut system = Registry::default();
    system.register_collector(Box::new(Process));
    encode_registry(out, &system)
}

/// The time for which a text may be shared.
const STAYS: Duration = Duration::from_secs(1);

/// The latest text of `GET /metrics`, shared by requests: its size and the time to make it grow with the number of
/// engines.
#[derive(Debug, Default)]
pub struct Exposition {
    made: Mutex<Option<MadeText>>,
}

#[derive(Debug)]
struct MadeText {
    since: Instant,
    open_metrics: Bytes,
    text: Option<Bytes>,
}

impl Exposition {
    /// The content type and the text for a request with these headers. `make` writes the text in OpenMetrics; a text
    /// less than a second old is used if `may_be_old`, or while it is still being sent to another client.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn get<E>(
        &self,
        headers: &HeaderMap,
        may_be_old: bool,
        make: impl FnOnce() -> Result<String, E>,
    ) -> Result<(&'static str, Bytes), E> {
        let mut made = self.made.lock();
        let is_good = |made: &MadeText| {
            let is_read = !made.open_metrics.is_unique() || made.text.as_ref().is_some_and(|text| !text.is_unique());
            made.since.elapsed() < STAYS && (may_be_old || is_read)
        };
        let kept = match made.take().filter(is_good) {
            Some(kept) => kept,
            None => {
                let since = Instant::now();
                MadeText { since, open_metrics: make()?.into(), text: None }
            }
        };
        let made = made.insert(kept);
        if !prefers_text(headers) {
            return Ok((OPEN_METRICS, made.open_metrics.clone()));
        }
        let open_metrics = &made.open_metrics;
        let text = made.text.get_or_insert_with(|| plain(&String::from_utf8_lossy(open_metrics)).into());
        Ok((TEXT, text.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_shared_by_those_who_ask_at_the_same_time() {
        let (exposition, none) = (Exposition::default(), HeaderMap::new());
        let text = HeaderMap::from_iter([(hyper::header::ACCEPT, "text/plain".parse().expect("a header"))]);
        let get = |headers, may_be_old, made: &str| {
            let (_, text) = exposition.get(headers, may_be_old, || Ok::<_, ()>(made.to_owned())).expect("it is made");
            text
        };
        let first = get(&none, false, "first\n");
        assert_eq!(get(&none, false, "second\n"), first);
        let plain = get(&text, false, "third\n");
        drop(first);
        assert_eq!((&*plain, &*get(&none, false, "fourth\n")), (&b"first\n"[..], &b"first\n"[..]));
        drop(plain);
        assert_eq!(get(&none, false, "fifth\n"), "fifth\n");
        assert_eq!(get(&none, true, "sixth\n"), "fifth\n");
        assert_eq!(get(&none, false, "seventh\n"), "seventh\n");
        assert!(exposition.get(&none, false, || Err(())).is_err());
    }
}
