//! Answers to `GET /metrics`: one text shared by simultaneous requests, in two formats, and the metrics of this
//! process.
//!
//! The formats are OpenMetrics and, if the client prefers it, the Prometheus text format 0.0.4.
//!
//! Metrics of this process are read from the operating system, on Linux only. Their names are those of Prometheus' own
//! client libraries.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{ACCEPT, HeaderMap};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Appends the metrics of this process, without the end mark of OpenMetrics.
///
/// # Errors
/// A failure to write to `out` is returned.
pub fn write_process(out: &mut String) -> std::fmt::Result {
    let mut system = Registry::default();
    system.register_collector(Box::new(Process));
    encode_registry(out, &system)
}

/// Time for which a text of the metrics, once made, may also answer later requests.
const STAYS: Duration = Duration::from_secs(1);

/// Latest text of `GET /metrics`, shared by several requests, because its size and the time to make it grow with the
/// number of engines.
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
    /// Returns the content type and the text of the metrics for a request with the headers `headers`. `make`: function
    /// that writes the text in OpenMetrics; `may_be_old`: true if a text less than a second old may be used. A text
    /// that is still being sent to another client is used in any case.
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

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// True if a request's headers prefer plain text to OpenMetrics, which is the default format of the metrics.
fn prefers_text(headers: &HeaderMap) -> bool {
    let (mut open, mut text, mut any) = (None, None, None);
    let all = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in all.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok()).unwrap_or(1.0);
        let slot = match &*name {
            "application/openmetrics-text" => &mut open,
            "text/plain" | "text/*" => &mut text,
            "*/*" | "application/*" => &mut any,
            _ => continue,
        };
        *slot = Some(slot.map_or(weight, |known: f32| known.max(weight)));
    }
    text.is_some_and(|text| text > open.or(any).unwrap_or(0.0))
}

/// Converts a text from OpenMetrics to the Prometheus text format 0.0.4, in which a counter's name ends with `_total`,
/// and which has no end mark.
fn plain(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        let mut words = line.splitn(4, ' ');
        let rest = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) => {
                let kind = if what == "TYPE" { Some(line) } else { lines.peek().copied() };
                let is_counter = kind.is_some_and(|kind| kind.starts_with("# TYPE ") && kind.ends_with(" counter"));
                Some((what, name, if is_counter { "_total" } else { "" }, rest))
            }
            _ => None,
        };
        let _ = match rest {
            Some((what, name, suffix, rest)) => writeln!(out, "# {what} {name}{suffix} {rest}"),
            None => writeln!(out, "{line}"),
        };
    }
    out
}

/// Number of clock ticks per second in `/proc`: 100 on all supported Linux architectures.
const TICKS: f64 = 100.0;

/// Collector of the metrics of this process, which reads `/proc/self` on each request.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let field = |number: usize| field(&stat, number);
        if let (Some(user), Some(system)) = (field(14), field(15)) {
            let help = "CPU time in seconds, user and system";
            let encoder = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new((user + system) / TICKS).encode(encoder)?;
        }
        let started = fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot_time).zip(field(22));
        let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let most = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
        for (name, help, value) in [
            ("process_resident_memory_bytes", "Resident memory in bytes", kilobytes(&status, "VmRSS:")),
            ("process_virtual_memory_bytes", "Virtual memory in bytes", kilobytes(&status, "VmSize:")),
            ("process_threads", "Threads", line(&status, "Threads:")),
            ("process_open_fds", "Open file descriptors", open),
            ("process_max_fds", "Maximum number of open file descriptors", most),
            (
                "process_start_time_seconds",
                "When the process started, in seconds since 1970",
                started.map(|(boot, ticks)| boot + ticks / TICKS),
            ),
        ] {
            if let Some(value) = value {
                let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(encoder)?;
            }
        }
        Ok(())
    }
}

/// Returns a field of the text `stat` of `/proc/self/stat`, by the field's number in the manual of `/proc`; None if the
/// field is missing. The second field, the process's name, may contain blanks.
fn field(stat: &str, number: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn line(status: &str, name: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

fn kilobytes(status: &str, name: &str) -> Option<f64> {
    line(status, name).map(|kilobytes| kilobytes * 1024.0)
}

fn boot_time(stat: &str) -> Option<f64> {
    line(stat, "btime")
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

    fn kind(accept: &[&str]) -> &'static str {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, value.parse().unwrap());
        }
        if prefers_text(&headers) { TEXT } else { OPEN_METRICS }
    }

    #[test]
    fn who_asks_for_text_gets_text() {
        for accept in [
            &["text/plain; version=0.0.4"][..],
            &["text/plain"],
            &["text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.5,*/*;q=0.1"],
            &["text/plain;version=0.0.4;q=0.5,*/*;q=0.1"],
            &["text/html", "text/plain"],
        ] {
            assert_eq!(kind(accept), TEXT, "{accept:?}");
        }
        for accept in [
            &[][..],
            &["*/*"],
            &["application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"],
            &["application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"],
            &["text/html,application/xhtml+xml,*/*;q=0.8"],
            &["text/plain;q=0"],
        ] {
            assert_eq!(kind(accept), OPEN_METRICS, "{accept:?}");
        }
    }

    #[test]
    fn counters_have_their_whole_name() {
        let open = "# HELP a Some counter.\n# TYPE a counter\na_total{b=\"# TYPE\"} 1\n# HELP c Some gauge.\n# TYPE c gauge\n\
        # UNIT c seconds\nc 2\n# EOF\n";
        let text = "# HELP a_total Some counter.\n# TYPE a_total counter\na_total{b=\"# TYPE\"} 1\n# HELP c Some gauge.\n\
        # TYPE c gauge\nc 2\n";
        assert_eq!(plain(open), text);
    }

    #[test]
    fn reads_what_the_system_writes() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 1234 9 9";
        assert_eq!((field(stat, 14), field(stat, 15), field(stat, 22)), (Some(150.0), Some(50.0), Some(1234.0)));
        assert_eq!((field("", 14), field("7 (a", 14)), (None, None));
        assert_eq!(kilobytes("VmSize:\t  12 kB\nVmRSS:\t   4 kB\n", "VmRSS:"), Some(4096.0));
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1.7e9));
    }
}
