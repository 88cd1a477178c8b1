//! Answers to queries as JSON, written by hand: a general serialiser would take longer than the lookup.

use std::collections::HashMap;
use std::sync::Arc;

use super::found::{Row, WorkerRow};
use super::writer::Writer;
use crate::state::{Keyspace, Stream, Untrusted};

/// `,"untrusted":[…]` and `,"partial":[…]`, each if there are any.
pub(crate) fn doubts(out: &mut Writer, streams: &Untrusted, allows: impl Fn(&str) -> bool) {
    untrusted(out, streams, &allows);
    partial(out, streams, &allows);
}

fn partial(out: &mut Writer, streams: &Untrusted, allows: impl Fn(&str) -> bool) {
    let mut streams = streams.partial.iter().filter(|stream| allows(&stream.worker)).peekable();
    if streams.peek().is_none() {
        return;
    }
    let ranks = streams.flat_map(|stream| stream.ranks().into_iter().map(move |rank| (stream, rank)));
    out.raw(",\"partial\":[");
    out.list(ranks, |out, (stream, rank)| {
        out.raw("{\"instance_id\":");
        out.id(&stream.worker);
        out.raw(",\"dp_rank\":");
        out.number(rank);
        out.raw("}");
    });
    out.raw("]");
}

fn untrusted(out: &mut Writer, streams: &Untrusted, allows: impl Fn(&str) -> bool) {
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
pub(crate) fn answer(out: &mut Writer, rows: &[Row], workers: &[WorkerRow], block_size: u64, ages: Option<&Keyspace>) {
    out.raw("{\"scores\":{");
    let on_device = workers.iter().filter(|worker| worker.depths.gpu > 0);
    out.list(on_device, |out, worker| {
        let ranks = &rows[worker.ranks.clone()];
        out.string(&ranks[0].worker);
        out.raw(":{");
        device_ranks(out, ranks, block_size);
        out.raw("}");
    });
    out.raw("},\"frequencies\":[],\"instances\":{");
    out.list(workers, |out, worker| {
        let ranks = &rows[worker.ranks.clone()];
        out.string(&ranks[0].worker);
        out.raw(":{\"longest_matched\":");
        out.number(u64::from(worker.depths.any) * block_size);
        out.raw(",\"gpu\":");
        out.number(u64::from(worker.depths.gpu) * block_size);
        out.raw(",\"dp\":{");
        device_ranks(out, ranks, block_size);
        out.raw("},\"cpu\":");
        out.number(u64::from(worker.depths.cpu) * block_size);
        out.raw(",\"disk\":");
        out.number(u64::from(worker.depths.disk) * block_size);
        if let Some(keyspace) = ages {
            age(out, ranks, keyspace);
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
fn age(out: &mut Writer, ranks: &[Row], keyspace: &Keyspace) {
    let streams: Vec<Arc<Stream>> = ranks.iter().filter_map(|row| keyspace.stream(&row.worker, row.rank)).collect();
    // One whose lag nobody knows is worse than any that is known.
    let worst = streams.iter().max_by_key(|stream| stream.status.lag().map_or(u128::MAX, |lag| lag.as_micros()));
    out.raw(",\"lag_ms\":");
    match worst.and_then(|stream| stream.status.lag()) {
        Some(lag) => out.raw(&format!("{:.3}", lag.as_secs_f64() * 1e3)),
        None => out.raw("null"),
    }
    out.raw(",\"state\":");
    match worst {
        Some(stream) => out.string(stream.status.state().name()),
        None => out.raw("null"),
    }
}

/// `,"levels":[…]`: the workers by the depth that their devices reach.
pub(crate) fn levels(out: &mut Writer, rows: &[Row], workers: &[WorkerRow], block_size: u64) {
    out.raw(",\"levels\":[");
    let on_device = workers.iter().position(|worker| worker.depths.gpu == 0).unwrap_or(workers.len());
    out.list(workers[..on_device].chunk_by(|a, b| a.depths.gpu == b.depths.gpu), |out, level| {
        out.raw("{\"tokens\":");
        out.number(u64::from(level[0].depths.gpu) * block_size);
        out.raw(",\"workers\":[");
        out.list(level, |out, worker| out.id(&rows[worker.ranks.start].worker));
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
