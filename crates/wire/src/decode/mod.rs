//! Decoder of an engine's payload (the bytes of one published message) into a batch of events.
//!
//! ```text
//! msgpack (values where they lie) ▶ values, extra (one field) ▶ draft (one event) ▶ decode (the batch)
//! ```
//!
//! Faults cost as few events as possible. An event with an invalid field is refused alone, since its end can be found
//! by skipping its values. A truncated or malformed value loses the event and all events after it, since their
//! beginnings cannot be found.

mod draft;
pub(crate) mod msgpack;
mod values;

use kvatlas_index::BlockHash;

use self::draft::{Draft, Fault};
use self::msgpack::{Cursor, MsgpackError, Value};
use crate::error::{Error, Reason, RefusedEvent};
use crate::event::{Batch, BatchOf, BlockName, EventOf, StoredOf};

/// Maximum number of refused events in a batch that are listed one by one. Further ones only increase the count of the
/// last listed event with the same reason, so that an invalid payload cannot occupy much memory.
const TOLD: usize = 32;

/// Decodes a payload, the third frame of an engine's ZeroMQ message, into a batch.
///
/// Accepts all forms that vLLM 0.11 to 0.33 and SGLang up to 0.5.23 send: events as maps or as positional arrays, with
/// missing trailing fields or unknown fields, and integers of any width.
///
/// # Errors
/// If the payload is not a batch. Events that cannot be decoded are not an error but are listed in [`Batch::refused`].
pub fn decode(payload: &[u8]) -> Result<Batch, Error> {
    let mut batch = Batch::default();
    read(payload, &mut batch, &mut Spare::default())?;
    Ok(batch)
}

/// Decoder that reuses its memory for each payload, and converts block hashes to the form that the index uses.
#[derive(Debug, Default)]
pub struct Decoder {
    batch: BatchOf<BlockHash>,
    spare: Spare<BlockHash>,
}

impl Decoder {
    /// Decodes a payload like [`decode()`], into memory that is overwritten by the next call.
    ///
    /// # Errors
    /// Those of [`decode()`].
    pub fn decode(&mut self, payload: &[u8]) -> Result<&BatchOf<BlockHash>, Error> {
        self.spare.take(&mut self.batch);
        read(payload, &mut self.batch, &mut self.spare)?;
        Ok(&self.batch)
    }
}

/// Decodes a payload into an empty batch, with memory taken from `spare`.
fn read<N: BlockName>(payload: &[u8], batch: &mut BatchOf<N>, spare: &mut Spare<N>) -> Result<(), Error> {
    let mut cursor = Cursor::new(payload);
    let (elements, timestamp, events) = envelope(&mut cursor).map_err(|wrong| match wrong {
        PayloadError::Shape(what) => Error::NotABatch { what },
        PayloadError::Broken(MsgpackError::Cut) if payload.is_empty() => Error::Empty,
        PayloadError::Broken(MsgpackError::Cut) => Error::Truncated { bytes: payload.len() },
        PayloadError::Broken(MsgpackError::Reserved) => Error::Malformed,
    })?;
    batch.timestamp = timestamp;
    // An event of less than 16 bytes is none.
    batch.events.reserve(events.min(cursor.left() / 16));
    for at in 0..events {
        let start = cursor;
        let fault = match event(&mut cursor, spare) {
            Ok(event) => {
                batch.events.push(event);
                continue;
            }
            Err(fault) => fault,
        };
        let broken = match fault {
            Fault::Broken(broken) => broken,
            Fault::Event(reason, detail) => {
                let may_remove = !is_store(start);
                refuse(&mut batch.refused, RefusedEvent { at, events: 1, reason, may_remove, detail });
                cursor = start;
                match cursor.skip() {
                    Ok(()) => continue,
                    // Not even the batch's rank is known, so whose events the others are is not either.
                    Err(_) if at + 1 == events => {
                        batch.refused.iter_mut().for_each(|refused| refused.may_remove = true);
                        return Ok(());
                    }
                    // This one is told already.
                    Err(broken) => {
                        lose(&mut batch.refused, at + 1, events, &cursor, broken);
                        return Ok(());
                    }
                }
            }
        };
        lose(&mut batch.refused, at, events, &start, broken);
        return Ok(());
    }
    if elements > 2 {
        match rank(&mut cursor) {
            Ok(rank) => batch.rank = rank,
            Err(Fault::Event(reason, detail)) => {
                let refused = RefusedEvent { at: events, events: 1, reason, may_remove: true, detail };
                refuse(&mut batch.refused, refused);
            }
            Err(Fault::Broken(broken)) => lose(&mut batch.refused, events, events + 1, &cursor, broken),
        }
    }
    Ok(())
}

enum PayloadError {
    Broken(MsgpackError),
    Shape(String),
}

impl From<MsgpackError> for PayloadError {
    fn from(broken: MsgpackError) -> Self {
        Self::Broken(broken)
    }
}

/// Reads the header of a batch, and returns its number of elements, its timestamp in seconds, and its number of events.
fn envelope(cursor: &mut Cursor<'_>) -> Result<(usize, f64, usize), PayloadError> {
    let elements = match cursor.value()? {
        Value::Array(elements) if elements >= 2 => elements,
        Value::Array(elements) => return Err(PayloadError::Shape(format!("an array of {elements}"))),
        other => return Err(PayloadError::Shape(other.kind().to_owned())),
    };
    let timestamp = match cursor.value()? {
        Value::Float(seconds) => seconds,
        Value::Unsigned(seconds) => seconds as f64,
        Value::Negative(seconds) => seconds as f64,
        Value::Nil => 0.0,
        other => return Err(PayloadError::Shape(format!("the timestamp is {}", other.kind()))),
    };
    match cursor.value()? {
        Value::Array(events) => Ok((elements, timestamp, events)),
        other => Err(PayloadError::Shape(format!("the events are {}", other.kind()))),
    }
}

fn rank(cursor: &mut Cursor<'_>) -> Result<Option<u32>, Fault> {
    match cursor.value()? {
        Value::Nil => Ok(None),
        Value::Unsigned(rank) if u32::try_from(rank).is_ok() => Ok(u32::try_from(rank).ok()),
        other => {
            let detail = format!("the batch's rank must be from 0 to {} or nil, found {}", u32::MAX, other.kind());
            Err(Fault::Event(Reason::InvalidField, detail))
        }
    }
}

fn event<N: BlockName>(cursor: &mut Cursor<'_>, spare: &mut Spare<N>) -> Result<EventOf<N>, Fault> {
    match cursor.value()? {
        Value::Map(entries) => {
            let tag = map_tag(*cursor, entries)?;
            let mut draft = Draft::new(tag, spare)?;
            draft.entries(cursor, entries)?;
            draft.finish()
        }
        Value::Array(elements @ 1..) => {
            let tag = match cursor.value()? {
                Value::Text(tag) => tag,
                other => return Err(not_an_event(&format!("an array that begins with {}", other.kind()))),
            };
            let mut draft = Draft::new(tag, spare)?;
            draft.elements(cursor, elements - 1)?;
            draft.finish()
        }
        Value::Array(_) => Err(not_an_event("an empty array")),
        other => Err(not_an_event(other.kind())),
    }
}

/// True if the event that begins at the cursor has the type of a store event, even if it is otherwise invalid.
fn is_store(mut cursor: Cursor<'_>) -> bool {
    let tag = match cursor.value() {
        Ok(Value::Map(entries)) => map_tag(cursor, entries).ok(),
        Ok(Value::Array(1..)) => match cursor.value() {
            Ok(Value::Text(tag)) => Some(tag),
            _ => None,
        },
        _ => None,
    };
    tag == Some(b"BlockStored")
}

/// Finds the type of an event that is encoded as a map. The type is usually the first entry, but may be any.
fn map_tag<'a>(mut cursor: Cursor<'a>, entries: usize) -> Result<&'a [u8], Fault> {
    for _ in 0..entries {
        if cursor.key()? == Some(b"type".as_slice()) {
            return match cursor.value()? {
                Value::Text(tag) => Ok(tag),
                other => Err(not_an_event(&format!("a map whose type is {}", other.kind()))),
            };
        }
        cursor.skip()?;
    }
    Err(not_an_event("a map without a type"))
}

fn not_an_event(what: &str) -> Fault {
    Fault::Event(Reason::NotAnEvent, format!("an event is a map with a type or an array with a tag, found {what}"))
}

/// Adds an event to the list of refused events, or to the count of a similar one if the list is full.
fn refuse(refused: &mut Vec<RefusedEvent>, one: RefusedEvent) {
    let is_same = |other: &&mut RefusedEvent| (other.reason, other.may_remove) == (one.reason, one.may_remove);
    let same = if refused.len() < TOLD { None } else { refused.iter_mut().rfind(is_same) };
    match same {
        Some(same) => same.events += one.events,
        None => refused.push(one),
    }
}

/// Records that event number `at` and all events after it are lost, because their beginnings cannot be found.
fn lose(refused: &mut Vec<RefusedEvent>, at: usize, events: usize, from: &Cursor<'_>, broken: MsgpackError) {
    // The number of events is only as good as the payload: there are not more of them than bytes.
    let lost = (events - at).min(from.left().max(1)) as u64;
    let (reason, what) = match broken {
        MsgpackError::Cut => (Reason::Truncated, "the payload ends inside the event"),
        MsgpackError::Reserved => {
            (Reason::Malformed, "a byte 0xc1, which begins no MessagePack value, inside the event")
        }
    };
    let detail = if lost > 1 { format!("{what}; {} after it are lost with it", lost - 1) } else { what.to_owned() };
    refuse(refused, RefusedEvent { at, events: lost, reason, may_remove: true, detail });
}

/// Maximum number of store events, and of lists of block hashes, whose memory is kept for reuse.
const EVENTS: usize = 64;
/// Maximum length of a list of block hashes whose memory is kept for reuse. Longer lists are rare, and their memory is
/// freed.
const NAMES: usize = 1 << 11;
/// Maximum length of a token list whose memory is kept for reuse. Longer lists are rare, and their memory is freed.
const TOKENS: usize = 1 << 14;

/// Memory of decoded events that is kept for reuse by later events.
#[derive(Debug)]
pub(crate) struct Spare<N> {
    stored: Vec<Box<StoredOf<N>>>,
    names: Vec<Vec<N>>,
}

impl<N> Default for Spare<N> {
    fn default() -> Self {
        Self { stored: Vec::new(), names: Vec::new() }
    }
}

impl<N> Spare<N> {
    /// Returns an empty store event, with reused memory if available.
    fn stored(&mut self) -> Box<StoredOf<N>> {
        self.stored.pop().unwrap_or_default()
    }

    /// Returns an empty list of block hashes, with reused memory if available.
    fn names(&mut self) -> Vec<N> {
        self.names.pop().unwrap_or_default()
    }

    /// Empties a batch, and keeps the memory of its events for reuse.
    fn take(&mut self, batch: &mut BatchOf<N>) {
        for event in batch.events.drain(..) {
            match event {
                EventOf::Stored(mut it) if self.stored.len() < EVENTS => {
                    let (mut block_hashes, mut tokens) =
                        (std::mem::take(&mut it.block_hashes), std::mem::take(&mut it.tokens));
                    if block_hashes.capacity() <= NAMES && tokens.capacity() <= TOKENS {
                        block_hashes.clear();
                        tokens.clear();
                        *it = StoredOf { block_hashes, tokens, ..StoredOf::default() };
                        self.stored.push(it);
                    }
                }
                EventOf::Removed(mut it) if self.names.len() < EVENTS && it.block_hashes.capacity() <= NAMES => {
                    it.block_hashes.clear();
                    self.names.push(it.block_hashes);
                }
                _ => {}
            }
        }
        batch.events.shrink_to(4 * EVENTS);
        batch.refused = Vec::new();
        (batch.timestamp, batch.rank) = (0.0, None);
    }
}
