//! Answers to queries as JSON, written by hand: a general serialiser would take longer than the lookup.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;

use super::found::{Group, Row};
use crate::fleet::{Fleet, Stream};
use crate::keyspace::UntrustedStreams;

/// JSON as it is written.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn raw(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// JSON that is written already.
    pub(crate) fn bytes(&mut self, json: &[u8]) {
        self.0.extend_from_slice(json);
    }

    pub(crate) fn number(&mut self, number: impl itoa::Integer) {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// A string with its quotes.
    pub(crate) fn string(&mut self, text: &str) {
        if text.bytes().all(|byte| matches!(byte, 0x20 | 0x21 | 0x23..=0x5b | 0x5d..=0x7e)) {
            self.0.push(b'"');
            self.raw(text);
            self.0.push(b'"');
        } else {
            // Writing to memory does not fail.
            let _ = serde_json::to_writer(&mut self.0, text);
        }
    }

    /// A worker: a number if it looks like one.
    pub(crate) fn id(&mut self, name: &str) {
        if is_number(name) { self.raw(name) } else { self.string(name) }
    }

    /// Items with commas between.
    pub(crate) fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        for (at, value) in items.into_iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            item(self, value);
        }
    }

    fn key(&mut self, number: u32) {
        self.0.push(b'"');
        self.number(number);
        self.raw("\":");
    }
}

/// Whether a name is a 64-bit integer as it would be written.
pub(crate) fn is_number(name: &str) -> bool {
    let bytes = name.as_bytes();
    let digits = (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit);
    digits && (bytes[0] != b'0' || bytes.len() == 1) && (bytes.len() < 20 || name.parse::<u64>().is_ok())
}

/// A worker's name as JSON: a number if it looks like one.
pub(crate) fn id_value(name: &str) -> serde_json::Value {
    match name.parse::<u64>() {
        Ok(number) if is_number(name) => number.into(),
        _ => name.into(),
    }
}

/// `,"untrusted":[…]`, if there are any.
pub(crate) fn untrusted(out: &mut Writer, streams: &UntrustedStreams, allows: impl Fn(&str) -> bool) {
    let mut streams = streams.streams.iter().filter(|stream| allows(&stream.worker)).peekable();
    if streams.peek().is_none() {
        return;
    }
    let ranks = streams.flat_map(|stream| stream.ranks().into_iter().map(move |rank| (stream, rank)));
    out.raw(",\"untrusted\":[");
    out.list(ranks, |out, (stream, rank)| {
        out.raw("{\"instance_id\":");
        out.id(&stream.worker);
        out.raw(",\"dp_rank\":");
        out.number(rank);
        out.raw(",\"state\":\"");
        out.raw(stream.status.state().name());
        out.raw("\"}");
    });
    out.raw("]");
}

/// The members of an answer that the dialect has.
pub(crate) fn answer(out: &mut Writer, rows: &[Row], groups: &[Group], block_size: u64, ages: Option<&Fleet>) {
    out.raw("{\"scores\":{");
    let on_device = groups.iter().filter(|group| group.depths.gpu > 0);
    out.list(on_device, |out, group| {
        let ranks = &rows[group.ranks.clone()];
        out.string(&ranks[0].worker);
        out.raw(":{");
        device_ranks(out, ranks, block_size);
        out.raw("}");
    });
    out.raw("},\"frequencies\":[],\"instances\":{");
    out.list(groups, |out, group| {
        let ranks = &rows[group.ranks.clone()];
        out.string(&ranks[0].worker);
        out.raw(":{\"longest_matched\":");
        out.number(u64::from(group.depths.any) * block_size);
        out.raw(",\"gpu\":");
        out.number(u64::from(group.depths.gpu) * block_size);
        out.raw(",\"dp\":{");
        device_ranks(out, ranks, block_size);
        out.raw("},\"cpu\":");
        out.number(u64::from(group.depths.cpu) * block_size);
        out.raw(",\"disk\":");
        out.number(u64::from(group.depths.disk) * block_size);
        if let Some(fleet) = ages {
            age(out, ranks, fleet);
        }
        out.raw("}");
    });
    out.raw("},\"tiers\":\"cumulative\",\"block_size\":");
    out.number(block_size);
}

fn device_ranks(out: &mut Writer, ranks: &[Row], block_size: u64) {
    out.list(ranks.iter().filter(|row| row.depths.gpu > 0), |out, row| {
        out.key(row.rank);
        out.number(u64::from(row.depths.gpu) * block_size);
    });
}

/// How far the worker's matching ranks are behind their engine, at most, and the state of the stream that is.
fn age(out: &mut Writer, ranks: &[Row], fleet: &Fleet) {
    let streams: Vec<Arc<Stream>> = ranks.iter().filter_map(|row| fleet.stream(&row.worker, row.rank)).collect();
    // One whose lag nobody knows is worse than any that is known.
    let worst = streams.iter().max_by_key(|stream| stream.status.lag().map_or(u128::MAX, |lag| lag.as_micros()));
    out.raw(",\"lag_ms\":");
    match worst.and_then(|stream| stream.status.lag()) {
        Some(lag) => {
            let _ = write!(out.0, "{:.3}", lag.as_secs_f64() * 1e3);
        }
        None => out.raw("null"),
    }
    out.raw(",\"state\":");
    match worst {
        Some(stream) => out.string(stream.status.state().name()),
        None => out.raw("null"),
    }
}

/// `,"levels":[…]`: the workers by the depth that their devices reach.
pub(crate) fn levels(out: &mut Writer, rows: &[Row], groups: &[Group], block_size: u64) {
    out.raw(",\"levels\":[");
    let on_device = groups.iter().position(|group| group.depths.gpu == 0).unwrap_or(groups.len());
    out.list(groups[..on_device].chunk_by(|a, b| a.depths.gpu == b.depths.gpu), |out, level| {
        out.raw("{\"tokens\":");
        out.number(u64::from(level[0].depths.gpu) * block_size);
        out.raw(",\"workers\":[");
        out.list(level, |out, group| out.id(&rows[group.ranks.start].worker));
        out.raw("]}");
    });
    out.raw("]");
}

/// The answers to a batch: ranks are numbered in the order in which they first match.
#[derive(Default)]
pub(crate) struct Ranks {
    numbers: HashMap<(Arc<str>, u32), u32>,
    list: Vec<(Arc<str>, u32)>,
}

impl Ranks {
    fn number(&mut self, row: &Row) -> u32 {
        let next = self.list.len() as u32;
        let key = (row.worker.clone(), row.rank);
        *self.numbers.entry(key).or_insert_with_key(|key| {
            self.list.push(key.clone());
            next
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// One answer of the batch: rows with the deepest first.
    pub(crate) fn answer(&mut self, out: &mut Writer, rows: &[Row], block_size: u64) {
        out.raw("{\"ranks\":[");
        out.list(rows, |out, row| out.number(self.number(row)));
        out.raw("],\"tokens\":[");
        out.list(rows, |out, row| out.number(u64::from(row.depths.gpu) * block_size));
        if rows.iter().any(|row| row.depths.any != row.depths.gpu) {
            out.raw("],\"any_tier\":[");
            out.list(rows, |out, row| out.number(u64::from(row.depths.any) * block_size));
        }
        out.raw("]}");
    }

    /// Who the numbers are.
    pub(crate) fn names(&self, out: &mut Writer) {
        out.list(&self.list, |out, (worker, rank)| {
            out.raw("{\"instance_id\":");
            out.id(worker);
            out.raw(",\"dp_rank\":");
            out.number(*rank);
            out.raw("}");
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_numbers() {
        for (name, number) in [
            ("0", true),
            ("7", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("99999999999999999999", false),
            ("007", false),
            ("00", false),
            ("-1", false),
            ("", false),
            ("7a", false),
            ("+7", false),
            ("123456789012345678901", false),
        ] {
            assert_eq!(is_number(name), number, "{name}");
            assert_eq!(id_value(name).is_u64(), number, "{name}");
        }
    }

    #[test]
    fn strings_are_escaped() {
        for text in ["a", "a b!", "a\"b", "a\\b", "déjà", "\n\u{1}", "", "</script>", "\u{7f}"] {
            let mut out = Writer::with_capacity(0);
            out.string(text);
            assert_eq!(serde_json::from_slice::<String>(&out.done()).expect("JSON"), text);
        }
    }
}
