//! Writing of the answers to queries as JSON, without a general serializer, which would take longer than the look-up.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;
use kvatlas_index::Loadable;

use crate::answer::Writer;
use kvatlas_follow::lookup::{Depths, Row, WorkerRow};
use kvatlas_follow::state::{Reservations, Stream};

/// Writes `,"lora_name":"…"` if the model named in the query was found to be a LoRA adapter.
pub(crate) fn adapter(out: &mut Writer, name: Option<&str>) {
    if let Some(name) = name {
        out.raw(",\"lora_name\":");
        out.string(name);
    }
}

/// Writes the lists of ranks whose indexed blocks may differ from their engine's: `,"untrusted":[…]`, `,"partial":[…]`,
/// `,"unverified":[…]` and `,"no_salts":[…]`. Empty lists are left out, and so are workers that `allows` rejects.
pub(crate) fn doubts(out: &mut Writer, streams: &Reservations, allows: impl Fn(&str) -> bool) {
    let state = |out: &mut Writer, stream: &Stream| {
        out.raw(",\"state\":\"");
        out.raw(stream.status.state().name());
        out.raw("\"");
    };
    ranks_of(out, ",\"untrusted\":[", streams.streams(), &allows, state);
    ranks_of(out, ",\"partial\":[", streams.partial(), &allows, |_, _| {});
    ranks_of(out, ",\"unverified\":[", streams.unverified(), &allows, |_, _| {});
    ranks_of(out, ",\"no_salts\":[", streams.no_salts(), &allows, |_, _| {});
}

/// Writes `,"wants_tokens":true` if `wants` is true: queries with tokens, instead of content hashes, would then help
/// the service.
pub(crate) fn wants_tokens(out: &mut Writer, wants: bool) {
    if wants {
        out.raw(",\"wants_tokens\":true");
    }
}

/// Writes a list of ranks with streams, unless it is empty. `more` writes additional members for each rank.
fn ranks_of<'a>(
    out: &mut Writer,
    member: &str,
    streams: impl Iterator<Item = &'a Arc<Stream>>,
    allows: impl Fn(&str) -> bool,
    more: impl Fn(&mut Writer, &Stream),
) {
    let mut streams = streams.filter(|stream| allows(&stream.worker)).peekable();
    if streams.peek().is_none() {
        return;
    }
    let ranks = streams.flat_map(|stream| stream.ranks().into_iter().map(move |rank| (stream, rank)));
    out.raw(member);
    out.list(ranks, |out, (stream, rank)| {
        out.raw("{\"instance_id\":");
        out.id(&stream.worker);
        out.raw(",\"dp_rank\":");
        out.number(rank);
        more(out, stream);
        out.raw("}");
    });
    out.raw("]");
}

/// Writes the part of an answer that other routers' indexers have too: for each worker, the numbers of matched tokens
/// on each tier. Adds the number of usable tokens, the loadable segments and the lag where known or requested.
pub(crate) fn answer(
    out: &mut Writer,
    rows: &[Row<'_>],
    workers: &[WorkerRow],
    loadable: &[Loadable],
    block_size: u64,
    ages: Option<&Reservations>,
) {
    out.raw("{\"scores\":{");
    let on_device = workers.iter().filter(|worker| worker.depths.gpu > 0);
    out.list(on_device, |out, worker| {
        let ranks = &rows[worker.ranks.clone()];
        out.string(ranks[0].worker);
        out.raw(":{");
        device_ranks(out, ranks, block_size);
        out.raw("}");
    });
    out.raw("},\"frequencies\":[],\"instances\":{");
    out.list(workers, |out, worker| {
        let ranks = &rows[worker.ranks.clone()];
        out.string(ranks[0].worker);
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
        if let Some(usable) = worker.usable {
            out.raw(",\"usable\":");
            out.number(u64::from(usable) * block_size);
        }
        let of_worker = loadable.iter().filter(|it| *it.worker == *ranks[0].worker);
        if let Some(best) = of_worker.max_by_key(|it| (it.depth(), it.device, Reverse(it.rank))) {
            segments(out, best, block_size);
        }
        if let Some(streams) = ages {
            age(out, ranks, streams);
        }
        out.raw("}");
    });
    out.raw("},\"tiers\":\"cumulative\",\"block_size\":");
    out.number(block_size);
}

/// Writes the segments of the prompt that the worker's best rank can load instead of computing them, the number of
/// leading tokens that its engine then uses (`used`), and the number of tokens that other engines can copy from that
/// rank's host memory (`pullable`).
fn segments(out: &mut Writer, found: &Loadable, block_size: u64) {
    out.raw(",\"loadable\":[");
    out.list(&found.segments, |out, it| {
        out.raw("{\"from\":");
        out.number(u64::from(it.start) * block_size);
        out.raw(",\"to\":");
        out.number(u64::from(it.end) * block_size);
        out.raw(",\"tier\":\"");
        out.raw(it.tier.name());
        out.raw("\",\"source\":");
        match &it.pool {
            Some(pool) => out.string(pool),
            None => out.id(&found.worker),
        }
        out.raw(",\"dp_rank\":");
        out.number(found.rank);
        out.raw(if it.is_certain { ",\"certain\":true" } else { ",\"certain\":false" });
        if let Some(age) = it.age {
            out.raw(&format!(",\"age\":{age:.3}"));
        }
        out.raw("}");
    });
    out.raw("],\"used\":");
    out.number(u64::from(found.used) * block_size);
    out.raw(",\"pullable\":");
    out.number(u64::from(found.host) * block_size);
    if found.may_hold_more {
        out.raw(",\"may_hold_more\":true");
    }
}

/// Makes answer rows for ranks that hold no leading blocks of the prompt, but can load some from a shared pool. Ranks
/// without a stream are left out.
pub(crate) fn others<'m>(
    rows: &[Row<'m>],
    loadable: &'m [Loadable],
    streams: &Reservations,
    cap: Option<u32>,
) -> Vec<Row<'m>> {
    let is_other = |it: &&Loadable| {
        it.depth() > 0
            && !rows.iter().any(|row| (row.worker, row.rank) == (&*it.worker, it.rank))
            && streams.stream_of(&it.worker, it.rank).is_some()
    };
    let row = |it: &'m Loadable| {
        let (worker, rank, depths) = (&*it.worker, it.rank, Depths::default());
        Row { worker, rank, depths, usable: cap.map(|_| 0) }
    };
    loadable.iter().filter(is_other).map(row).collect()
}

fn device_ranks(out: &mut Writer, ranks: &[Row<'_>], block_size: u64) {
    out.list(ranks.iter().filter(|row| row.depths.gpu > 0), |out, row| {
        out.key(row.rank);
        out.number(u64::from(row.depths.gpu) * block_size);
    });
}

/// Writes the largest lag of the worker's matching ranks, in milliseconds, and the state of the stream with this lag.
/// The lag is the time by which the index is behind the engine; an unknown lag counts as the largest.
fn age(out: &mut Writer, ranks: &[Row<'_>], streams: &Reservations) {
    let streams = ranks.iter().filter_map(|row| streams.stream_of(row.worker, row.rank));
    // An unknown lag counts as the largest.
    let worst = streams.max_by_key(|stream| stream.status.lag().map_or(u128::MAX, |lag| lag.as_micros()));
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

/// Writes `,"levels":[…]`: the workers grouped by the number of leading tokens that they hold in device memory.
pub(crate) fn levels(out: &mut Writer, rows: &[Row<'_>], workers: &[WorkerRow], block_size: u64) {
    out.raw(",\"levels\":[");
    let on_device = workers.iter().position(|worker| worker.depths.gpu == 0).unwrap_or(workers.len());
    out.list(workers[..on_device].chunk_by(|a, b| a.depths.gpu == b.depths.gpu), |out, level| {
        out.raw("{\"tokens\":");
        out.number(u64::from(level[0].depths.gpu) * block_size);
        out.raw(",\"workers\":[");
        out.list(level, |out, worker| out.id(rows[worker.ranks.start].worker));
        out.raw("]}");
    });
    out.raw("]");
}

/// Ranks in the answers to a batch of queries, numbered in the order in which they first appear. Answers contain the
/// numbers instead of the names.
#[derive(Default)]
pub(crate) struct Ranks {
    /// Numbers of the ranks of each worker, as pairs of a rank and its number.
    numbers: HashMap<String, Vec<(u32, u32)>>,
    list: Vec<(String, u32)>,
}

impl Ranks {
    fn number(&mut self, row: &Row<'_>) -> u32 {
        let ranks = self.numbers.entry_ref(row.worker).or_default();
        if let Some((_, number)) = ranks.iter().find(|(rank, _)| *rank == row.rank) {
            return *number;
        }
        let next = self.list.len() as u32;
        ranks.push((row.rank, next));
        self.list.push((row.worker.to_owned(), row.rank));
        next
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Writes the answer to one query of the batch. `rows` has the matching ranks, deepest first.
    pub(crate) fn answer(&mut self, out: &mut Writer, rows: &[Row<'_>], block_size: u64) {
        out.raw("{\"ranks\":[");
        out.list(rows, |out, row| out.number(self.number(row)));
        out.raw("],\"tokens\":[");
        out.list(rows, |out, row| out.number(u64::from(row.depths.gpu) * block_size));
        if rows.iter().any(|row| row.usable.is_some_and(|usable| usable != row.depths.gpu)) {
            out.raw("],\"usable\":[");
            out.list(rows, |out, row| out.number(u64::from(row.usable.unwrap_or(row.depths.gpu)) * block_size));
        }
        if rows.iter().any(|row| row.depths.any != row.depths.gpu) {
            out.raw("],\"any_tier\":[");
            out.list(rows, |out, row| out.number(u64::from(row.depths.any) * block_size));
        }
        out.raw("]}");
    }

    /// Writes the worker and the data-parallel rank for each number, in the order of the numbers.
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
