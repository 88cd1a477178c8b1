//! Route `/dump`: sends all indexed blocks as events in the format of engines, while they are read from the index.
//!
//! The index is read in slices, and streams continue to be followed between slices. So the blocks of one rank are from
//! one moment, those of different ranks from different moments. If a dump cannot be completed, the connection is closed
//! before the end of the body.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use kvatlas_index::{BlockHash, BlockIndex, Event, Tier};
use tokio::sync::mpsc;

use crate::answer::{Piece, Writer};
use crate::app::App;
use kvatlas_follow::log::panic_text;
use kvatlas_follow::state::Keyspace;

/// Minimum number of bytes in a piece of the body before the piece is sent.
const PIECE: usize = 64 << 10;

/// Maximum number of pieces that are queued until the client reads them.
const WAITING: usize = 4;

/// Pause between reading two slices of the index, during which waiting threads can take the index's lock.
const PAUSE: Duration = Duration::from_micros(100);

/// Error for a dump whose client has disconnected.
struct Disconnect;

/// Starts a dump on a thread of its own, because the client may read slowly and the index may be large. Dumps run one
/// after another, since each copies a rank's blocks before sending them. While a dump waits, white space is sent at
/// intervals of `blank`, so that the connection is not closed as idle.
pub(crate) fn start(app: &Arc<App>, blank: Duration) -> mpsc::Receiver<Piece> {
    let (sender, pieces) = mpsc::channel(WAITING);
    let app = app.clone();
    tokio::spawn(async move {
        let mut turn = pin!(app.dumps.clone().acquire_owned());
        let turn = loop {
            tokio::select! {
                turn = &mut turn => break turn,
                () = sender.closed() => return,
                () = tokio::time::sleep(blank) => wait(&sender),
            }
        };
        let (pieces, fleet) = (sender.clone(), app.fleet.clone());
        #[cfg(test)]
        let fail = app.fail.swap(false, Relaxed);
        let mut writing = tokio::task::spawn_blocking(move || {
            let mut out = Pieces {
                writer: Writer::with_capacity(PIECE + 4096),
                sender: pieces,
                #[cfg(test)]
                fail,
            };
            // The client has left.
            let _ = write(&mut out, &fleet.keyspaces());
            drop(turn);
        });
        loop {
            tokio::select! {
                written = &mut writing => {
                    if let Err(error) = written {
                        app.counts.panics.fetch_add(1, Relaxed);
                        let panic = error.try_into_panic();
                        let panic = panic.as_ref().map_or("its thread ended", |panic| panic_text(&**panic));
                        tracing::error!(panic, "internal error while a dump was being written; it is cut off");
                    }
                    return;
                }
                () = tokio::time::sleep(blank) => wait(&sender),
            }
        }
    });
    pieces
}

/// Sends white space, which JSON allows between any two pieces, unless the client still has unread pieces.
fn wait(sender: &mpsc::Sender<Piece>) {
    let _ = sender.try_send(Piece::Bytes(Bytes::from_static(b"\n")));
}

struct Pieces {
    writer: Writer,
    sender: mpsc::Sender<Piece>,
    /// True if the dump must panic, for tests of internal errors.
    #[cfg(test)]
    fail: bool,
}

impl Pieces {
    fn send(&mut self, at_least: usize) -> Result<(), Disconnect> {
        if self.writer.len() < at_least.max(1) {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.writer, Writer::with_capacity(PIECE + 4096)).finish();
        self.sender.blocking_send(Piece::Bytes(piece.into())).map_err(|_| Disconnect)
    }

    fn end(&mut self) -> Result<(), Disconnect> {
        self.send(0)?;
        self.sender.blocking_send(Piece::End).map_err(|_| Disconnect)
    }
}

fn write(out: &mut Pieces, keyspaces: &[Arc<Keyspace>]) -> Result<(), Disconnect> {
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
        let index = keyspace.index().clone();
        for events in index.dump_in_slices(BlockIndex::SLICE) {
            for event in events {
                let Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } = event else { continue };
                if written > 0 {
                    out.writer.raw(",");
                }
                let blocks = block_hashes.iter().copied().zip(content_hashes);
                store(out, &worker, rank, tier, written, parent, blocks)?;
                written += 1;
            }
            #[cfg(test)]
            assert!(!out.fail, "as the test wants it");
            std::thread::sleep(PAUSE);
        }
        out.writer.raw("]}");
    }
    out.writer.raw("]}");
    out.end()
}

fn store(
    out: &mut Pieces,
    worker: &str,
    rank: u32,
    tier: Tier,
    number: u64,
    parent: Option<BlockHash>,
    blocks: impl Iterator<Item = (BlockHash, u64)>,
) -> Result<(), Disconnect> {
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
