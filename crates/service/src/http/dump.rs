//! `/dump`: everything held, in the dialect's events, sent while it is written.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvatlas_index::{BlockHash, Event, Tier};
use tokio::sync::{Semaphore, mpsc};

use super::writer::Writer;
use crate::fleet::Fleet;
use crate::state::Keyspace;

/// Bytes that are written before they are sent.
const PIECE: usize = 64 << 10;

/// Pieces that wait for the client to read.
const WAITING: usize = 4;

/// The client has left.
struct Gone;

/// Writes on a thread that may wait, as the client may read slowly and an index may be large. One after the other: each
/// copies an index before it is sent. Whoever waits gets white space every `blank`, or would be cut off as idle.
pub(crate) fn start(fleet: &Arc<Fleet>, turns: &Arc<Semaphore>, blank: Duration) -> mpsc::Receiver<Bytes> {
    let (sender, pieces) = mpsc::channel(WAITING);
    let (fleet, turns) = (fleet.clone(), turns.clone());
    tokio::spawn(async move {
        let mut turn = pin!(turns.acquire_owned());
        let turn = loop {
            tokio::select! {
                turn = &mut turn => break turn,
                () = sender.closed() => return,
                () = tokio::time::sleep(blank) => wait(&sender),
            }
        };
        let pieces = sender.clone();
        let mut writing = tokio::task::spawn_blocking(move || {
            let mut out = Pieces { writer: Writer::with_capacity(PIECE + 4096), sender: pieces };
            // A client that has left wants no more.
            let _ = write(&mut out, &fleet.keyspaces());
            drop(turn);
        });
        loop {
            tokio::select! {
                _ = &mut writing => return,
                () = tokio::time::sleep(blank) => wait(&sender),
            }
        }
    });
    pieces
}

/// White space, which means nothing between any two pieces. If many pieces wait, nobody reads.
fn wait(sender: &mpsc::Sender<Bytes>) {
    let _ = sender.try_send(Bytes::from_static(b"\n"));
}

struct Pieces {
    writer: Writer,
    sender: mpsc::Sender<Bytes>,
}

impl Pieces {
    fn send(&mut self, at_least: usize) -> Result<(), Gone> {
        if self.writer.len() < at_least.max(1) {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.writer, Writer::with_capacity(PIECE + 4096)).done();
        self.sender.blocking_send(piece.into()).map_err(|_| Gone)
    }
}

fn write(out: &mut Pieces, keyspaces: &[Arc<Keyspace>]) -> Result<(), Gone> {
    out.writer.raw("{\"keyspaces\":[");
    for (at, keyspace) in keyspaces.iter().enumerate() {
        let writer = &mut out.writer;
        writer.raw(if at > 0 { ",{\"model_name\":" } else { "{\"model_name\":" });
        writer.string(&keyspace.model);
        writer.raw(",\"routing_group\":");
        writer.string(&keyspace.routing_group);
        writer.raw(",\"block_size\":");
        writer.number(keyspace.block_size);
        writer.raw(",\"events\":[");
        let mut written = 0u64;
        for event in keyspace.index.dump() {
            let Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } = event else { continue };
            if written > 0 {
                out.writer.raw(",");
            }
            let blocks = block_hashes.iter().copied().zip(content_hashes);
            store(out, &worker, rank, tier, written, parent, blocks)?;
            written += 1;
        }
        out.writer.raw("]}");
    }
    out.writer.raw("]}");
    out.send(0)
}

fn store(
    out: &mut Pieces,
    worker: &str,
    rank: u32,
    tier: Tier,
    number: u64,
    parent: Option<BlockHash>,
    blocks: impl Iterator<Item = (BlockHash, u64)>,
) -> Result<(), Gone> {
    let writer = &mut out.writer;
    writer.raw("{\"worker_id\":");
    writer.id(worker);
    writer.raw(",\"storage_tier\":\"");
    writer.raw(match tier {
        Tier::Gpu => "device",
        Tier::Cpu => "host_pinned",
        Tier::Disk => "disk",
        Tier::External => "external",
    });
    writer.raw("\",\"residency_domain\":\"worker\",\"event\":{\"event_id\":");
    writer.number(number);
    writer.raw(",\"data\":{\"stored\":{\"parent_hash\":");
    match parent {
        Some(parent) => writer.number(parent.0),
        None => writer.raw("null"),
    }
    writer.raw(",\"start_position\":null,\"blocks\":[");
    for (at, (block, content)) in blocks.enumerate() {
        let writer = &mut out.writer;
        writer.raw(if at > 0 { ",{\"block_hash\":" } else { "{\"block_hash\":" });
        writer.number(block.0);
        writer.raw(",\"tokens_hash\":");
        writer.number(content);
        writer.raw(",\"mm_extra_info\":null}");
        out.send(PIECE)?;
    }
    out.writer.raw("]}},\"dp_rank\":");
    out.writer.number(rank);
    out.writer.raw("}}");
    Ok(())
}
