//! One text of metrics for all who ask for it at the same time: it is as long as there are engines, and takes time to make.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::HeaderMap;
use parking_lot::Mutex;

use super::format::{OPEN_METRICS, TEXT, plain, prefers_text};

/// The time for which a text is given to others.
const STAYS: Duration = Duration::from_secs(1);

/// The text of `GET /metrics` that was made last.
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
    /// The type and the text for a client that sent these headers. `make` writes it in OpenMetrics; one that was made less
    /// than a second ago is taken if `may_be_old`, or if it is still on its way to somebody.
    ///
    /// # Errors
    /// Those of `make`.
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
