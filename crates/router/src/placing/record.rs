//! File of decisions: a line of JSON for each request, written when the request has ended. A line has no text of the
//! prompt, only the hashes of its blocks, which suffice to compute later what another policy would have done.
//!
//! Adding a request to the file never waits: a separate thread formats and writes the lines. If the thread cannot keep
//! up, or the disk is full, lines are dropped and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Builder, JoinHandle};

use serde_json::Value;

use crate::answers::observe::Stop;
use crate::placing::decisions::Record;

/// Maximum number of records of routing decisions that wait to be written to the file.
const QUEUE: usize = 8192;

/// Number of records of decisions, by outcome: written, dropped or failed.
#[derive(Debug, Default)]
pub(crate) struct RecordCounts {
    /// Number of records of decisions written to the file.
    pub written: AtomicU64,
    /// Number of records of decisions dropped because too many records waited to be written.
    pub dropped: AtomicU64,
    /// Number of records of decisions lost because the file could not be written.
    pub failed: AtomicU64,
}

impl RecordCounts {
    /// Returns the numbers of records by outcome, each with its name in metrics and answers.
    pub(crate) fn by_name(&self) -> [(&'static str, u64); 3] {
        [("written", &self.written), ("dropped", &self.dropped), ("failed", &self.failed)]
            .map(|(name, count)| (name, count.load(Relaxed)))
    }

    /// Returns the numbers of records by outcome as JSON for answers of the router.
    pub(crate) fn to_json(&self) -> Value {
        self.by_name().into_iter().map(|(name, count)| (name.to_owned(), Value::from(count))).collect()
    }
}

/// Writer of records of decisions to a file, with a thread of its own.
#[derive(Debug)]
pub(crate) struct Recorder {
    queue: Option<SyncSender<Arc<Record>>>,
    counts: Arc<RecordCounts>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Opens the file at `path` for appending, or creates the file.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // Who asked when, and what prompts share, is nobody else's to read.
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Self::to(file, path, QUEUE)
    }

    fn to(file: File, path: &Path, queue: usize) -> io::Result<Self> {
        let (queue, records) = sync_channel(queue);
        let counts = Arc::new(RecordCounts::default());
        let (its, path) = (counts.clone(), path.to_owned());
        let thread =
            Builder::new().name("kvatlas-record".to_owned()).spawn(move || write_all(file, &path, &records, &its))?;
        Ok(Self { queue: Some(queue), counts, thread: Some(thread) })
    }

    /// Queues a record of a decision to be written to the file soon. Never waits: the record is dropped and counted if
    /// the queue is full.
    pub(crate) fn push(&self, record: Arc<Record>) {
        if self.queue.as_ref().is_none_or(|queue| queue.try_send(record).is_err()) {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of records of decisions so far, by outcome.
    #[must_use]
    pub(crate) fn counts(&self) -> &RecordCounts {
        &self.counts
    }
}

impl Drop for Recorder {
    /// Waits until all queued records of decisions are written to the file.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn write_all(file: File, path: &Path, records: &Receiver<Arc<Record>>, counts: &RecordCounts) {
    let mut out = BufWriter::with_capacity(1 << 18, file);
    let mut line = Vec::with_capacity(1 << 14);
    let mut told = false;
    while let Ok(first) = records.recv() {
        let mut next = Ok(first);
        let mut lines = 0;
        let mut result = Ok(());
        // All that there is, then to the disk: a reader sees the last request while nothing happens.
        loop {
            match next {
                Ok(record) => {
                    line.clear();
                    write_line(&mut line, &record);
                    lines += 1;
                    if result.is_ok() {
                        result = out.write_all(&line);
                    }
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
            next = records.try_recv();
        }
        match result.and_then(|()| out.flush()) {
            Ok(()) => {
                counts.written.fetch_add(lines, Relaxed);
            }
            Err(error) => {
                counts.failed.fetch_add(lines, Relaxed);
                if !told {
                    told = true;
                    tracing::error!(path = %path.display(), %error, "decisions cannot be recorded");
                }
            }
        }
    }
}

fn write_line(out: &mut Vec<u8>, record: &Record) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let ended = record.ended.get();
    let mut head = serde_json::json!({
        "t": to_micros(record.at),
        "id": record.number,
        "model": record.model,
        "tokens": record.tokens,
        "block_size": record.block_size,
        "worker": &*record.worker,
        "rank": record.rank,
        "expected": record.cached,
        "why": record.why,
        "ended": ended.map(|ended| ended.how),
        "cached": ended.and_then(|ended| ended.cached),
        "output": ended.and_then(|ended| ended.output),
        "stop": ended.and_then(|ended| ended.stop).map(Stop::word),
        "first_token": ended.and_then(|ended| ended.first_token).map(to_micros),
        "took": ended.map(|ended| to_micros(ended.took)),
    });
    if let (Some(turn), Some(fields)) = (&record.turn, head.as_object_mut()) {
        turn.record(fields);
    }
    // The hashes by hand: they are most of the line.
    out.extend_from_slice(head.to_string().trim_end_matches('}').as_bytes());
    out.extend_from_slice(b",\"hashes\":[");
    for (at, hash) in record.hashes.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"\"" } else { b",\"" });
        out.extend((0..16).rev().map(|nibble| DIGITS[usize::from((hash >> (4 * nibble)) as u8 & 15)]));
        out.push(b'"');
    }
    out.extend_from_slice(b"]}\n");
}

/// Rounds a time in seconds to the microsecond, to keep the lines of the file short.
fn to_micros(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::placing::decisions::Outcome;

    fn record(id: u64) -> Arc<Record> {
        let record = Record {
            number: id,
            at: 1_700_000_000.250_001_4,
            model: Some("a \"model\"}".to_owned()),
            tokens: 50,
            block_size: 16,
            hashes: vec![0, 0x0123_4567_89ab_cdef, u64::MAX].into(),
            worker: "a:8000".into(),
            rank: 1,
            cached: 48,
            predicted: 16,
            transfer: None,
            why: "cost",
            micros: 90,
            bounds: None,
            terms: None,
            turn: None,
            ended: OnceLock::new(),
        };
        let ended = Outcome {
            how: "finished",
            cached: Some(32),
            counted: None,
            output: None,
            stop: None,
            first_token: Some(0.0015),
            took: 2.0,
        };
        record.ended.set(ended).unwrap();
        Arc::new(record)
    }

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("kvatlas-record-{}-{name}.jsonl", std::process::id()))
    }

    #[test]
    fn lines_are_whole_and_in_order() {
        let path = path("order");
        for start in [0, 100] {
            let recorder = Recorder::open(&path).unwrap();
            (start..start + 100).for_each(|id| recorder.push(record(id)));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            lines.iter().map(|line| line["id"].as_u64().unwrap()).collect::<Vec<_>>(),
            (0..200).collect::<Vec<_>>()
        );
        let line = &lines[7];
        assert!((line["t"].as_f64().unwrap() - 1_700_000_000.250_001).abs() < 2e-6);
        assert_eq!((&line["worker"], &line["rank"], &line["expected"]), (&"a:8000".into(), &1.into(), &48.into()));
        assert_eq!(line["model"], "a \"model\"}");
        assert_eq!(line["hashes"], serde_json::json!(["0000000000000000", "0123456789abcdef", "ffffffffffffffff"]));
        assert_eq!((&line["cached"], &line["output"]), (&32.into(), &serde_json::Value::Null));
        assert_eq!((&line["first_token"], &line["took"]), (&0.0015.into(), &2.0.into()));
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        // Nobody takes anything out of this queue.
        let (queue, kept) = sync_channel(3);
        let recorder = Recorder { queue: Some(queue), counts: Arc::default(), thread: None };
        (0..10).for_each(|id| recorder.push(record(id)));
        assert_eq!(recorder.counts().dropped.load(Relaxed), 7);
        assert_eq!(kept.try_iter().map(|record| record.number).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_counted() {
        let full = std::path::Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let recorder = Recorder::open(full).unwrap();
        recorder.push(record(1));
        let counts = recorder.counts.clone();
        drop(recorder);
        assert_eq!((counts.failed.load(Relaxed), counts.written.load(Relaxed)), (1, 0));
    }

    #[test]
    fn a_folder_is_not_a_file() {
        assert!(Recorder::open(&std::env::temp_dir()).is_err());
    }
}
