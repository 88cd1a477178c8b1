//! Asking a stream's task for a copy of what it holds.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kvatlas_index::{BlockHash, CopyDone};
use kvatlas_wire::SaltedBlock;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::snapshot::{RankBlocks, StreamCopy, StreamHead};
use kvatlas_stream::Skip;

/// A rank, as its stream's task has copied it.
pub(crate) struct CopiedRank {
    pub(crate) blocks: CopyDone,
    pub(crate) salts: Vec<SaltedBlock>,
    pub(crate) answered: Vec<BlockHash>,
}

/// A stream, as its task has copied it. Its ranks are in the order of its head's.
pub(crate) struct CopiedStream {
    pub(crate) head: StreamHead,
    pub(crate) ranks: Vec<CopiedRank>,
}

/// Somebody waits for a copy, for some time.
pub(crate) struct CopyRequest {
    answer: SyncSender<Result<CopiedStream, Skip>>,
    until: Instant,
}

impl CopyRequest {
    pub(crate) fn answer(self, copied: Result<CopiedStream, Skip>) {
        // Whoever asked may have given up.
        let _ = self.answer.try_send(copied);
    }

    pub(crate) fn is_given_up(&self) -> bool {
        Instant::now() > self.until
    }
}

/// The channel by which the task of a stream is asked for a copy.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<Option<mpsc::Sender<CopyRequest>>>);

impl Copies {
    /// The task listens from now on.
    pub(crate) fn listen(&self) -> mpsc::Receiver<CopyRequest> {
        let (sender, receiver) = mpsc::channel(1);
        *self.0.lock() = Some(sender);
        receiver
    }

    fn ask(&self, until: Instant) -> Option<Receiver<Result<CopiedStream, Skip>>> {
        let (answer, answered) = sync_channel(1);
        let sender = self.0.lock().clone()?;
        sender.try_send(CopyRequest { answer, until }).ok()?;
        Some(answered)
    }

    /// Returns what the stream holds, copied by its task, between its batches. Waits, not for longer than `wait`.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn copy(&self, wait: Duration) -> Result<StreamCopy, Skip> {
        let answered = self.ask(Instant::now() + wait).ok_or(Skip::NoAnswer)?;
        let CopiedStream { head, ranks } = match answered.recv_timeout(wait) {
            Ok(answered) => answered?,
            Err(_) => return Err(Skip::NoAnswer),
        };
        let rank = |CopiedRank { blocks, salts, answered }| RankBlocks { held: blocks.sorted(), salts, answered };
        Ok(StreamCopy { head, ranks: ranks.into_iter().map(rank).collect() })
    }
}
