//! The formats of metrics: OpenMetrics, and the Prometheus text format 0.0.4 on request.

use std::fmt::Write as _;

use hyper::header::{ACCEPT, HeaderMap};

pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
pub(super) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// True if the headers prefer plain text to OpenMetrics, which is the default.
pub(super) fn prefers_text(headers: &HeaderMap) -> bool {
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

/// The text format 0.0.4: a counter's name ends with `_total`, and there is no end mark.
pub(super) fn plain(open_metrics: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
